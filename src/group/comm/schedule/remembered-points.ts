/** Points that tuning has found, a file for each model, world and network, for the next run. A file that cannot
 *  be read counts as none, and costs only the time to tune again. */
import { homedir } from 'node:os';
import { join } from 'node:path';
import { messageOf } from '../../../base/errors.ts';
import { readRegularFileSync } from '../../../base/files/read-file.ts';
import { writeFileWhole } from '../../../base/files/write-file.ts';
import type { Logger } from '../../../base/log.ts';
import { anyText, integer, literal, number, object, optional, parse } from '../../../base/schema.ts';
import type { PointMemory, RememberedPoint } from '../../../scheduler/tuner/step-tuning.ts';
import type { SearchSpace } from '../../../scheduler/tuner/tuner.ts';

export interface RememberedPointsOptions {
  /** SHOAL_SCHEDULE_TUNING_DIR; empty: the user's cache; `-`: nothing is kept. */
  readonly folder: string;
  /** `2x4`: ranks by host. */
  readonly world: string;
  readonly network: string;
  /** The space that is tuned: a point of another space is none. */
  readonly space: SearchSpace;
  readonly log: Logger;
}

const bytes = optional(integer({ min: 1 }));
const file = object({
  format: literal('shoal-schedule-point'),
  version: literal(1),
  model: anyText,
  world: anyText,
  network: anyText,
  point: object({ creditBytes: bytes, partitionBytes: bytes }),
  stepMs: optional(number({ min: 0 })),
});

/** undefined: nothing is kept. */
export function rememberedPoints(options: RememberedPointsOptions): PointMemory | undefined {
  const { world, network, space, log } = options;
  if (options.folder === '-') return undefined;
  const cache = process.env.XDG_CACHE_HOME ?? join(homedir(), '.cache');
  const folder = options.folder === '' ? join(cache, 'shoal', 'schedule') : options.folder;
  const nameOf = (model: string): string => `${[model, world, network].join('--').replaceAll(/[^\w.-]+/g, '_')}.json`;
  return {
    recall(model): RememberedPoint | undefined {
      const path = join(folder, nameOf(model));
      let text: string;
      try {
        text = readRegularFileSync(path, { bytesMax: 2 ** 16 }).toString();
      } catch {
        return undefined;
      }
      const refuse = (why: string): undefined => {
        log.warn(`${path} is not used: ${why}`);
      };
      try {
        const { point, stepMs, ...of } = parse('the file', file, JSON.parse(text));
        if (of.model !== model || of.world !== world || of.network !== network)
          return refuse(`it is of model ${of.model}, world ${of.world}, network ${of.network}`);
        if (!fits(point, space)) return undefined;
        log.info(`scheduling goes on with the point of ${path}`);
        return { point, stepMs };
      } catch (thrown) {
        return refuse(`it is not a tuned point: ${messageOf(thrown)}`);
      }
    },
    keep(model, remembered): void {
      try {
        const text = JSON.stringify({ format: 'shoal-schedule-point', version: 1, model, world, network, ...remembered }, null, 2);
        log.info(`the tuned point is kept in ${writeFileWhole(folder, nameOf(model), [`${text}\n`])}`);
      } catch (thrown) {
        log.warn(`the tuned point cannot be kept: ${messageOf(thrown)}`);
      }
    },
  };
}

function fits(point: RememberedPoint['point'], space: SearchSpace): boolean {
  return (['creditBytes', 'partitionBytes'] as const).every((name) => {
    const value = point[name];
    const range = space[name];
    if (value === undefined || range === undefined) return value === undefined && range === undefined;
    return range.least <= value && value <= range.most;
  });
}
