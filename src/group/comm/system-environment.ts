/** The comm side's view of the real machine: clock, memory, kernels, store, fabrics. Tests build their own. */
import { hostname } from 'node:os';
import { allowedCpus } from '../../base/files/allowed-cpus.ts';
import { systemClock } from '../../base/clock.ts';
import { messageOf, ShoalError } from '../../base/errors.ts';
import { checkDescriptors } from '../../base/exhaustion.ts';
import { createLogger } from '../../base/log.ts';
import { systemRandom } from '../../base/random.ts';
import { packageVersion } from '../../base/packages/version.ts';
import type { CommThreadContext } from '../../comm/thread/guest.ts';
import type { Fabric, FabricOptions, FabricProvider } from '../../fabric/fabric.ts';
import { hostIdentity } from '../../base/files/host-identity.ts';
import { fabricProviders, fabricsNamed } from '../../fabric/providers.ts';
import { countersIn } from '../../metrics/board.ts';
import { CallCounters } from '../../metrics/call-counters.ts';
import { createKernels } from '../../memory/kernels/create-kernels.ts';
import { loadNative } from '../../memory/native.ts';
import { serveStatus } from '../../metrics/status-socket.ts';
import { createRegionAllocator } from '../../memory/regions/allocator.ts';
import { createStepMachine } from '../../memory/step-machine/create-step-machine.ts';
import { FlightRecorder, writeFlightDump } from '../../trace/flight-recorder.ts';
import { createRecorder, nullRecorder } from '../../trace/recorder.ts';
import type { CommEnvironment, Meeting } from './engine/environment.ts';
import type { WorldPlan } from '../shared/comm-protocol.ts';
import { isLoopback } from '../../store/environment.ts';
import { openWorldStore } from '../shared/open-world-store.ts';
import { OperationLog } from './diagnosis/operation-log.ts';
import { parseStoreUrl, type OpenedStore } from '../../store/open-store.ts';

/** @param context the comm thread; absent: the calling thread communicates. @throws ShoalError `config`. */
export function systemEnvironment(plan: WorldPlan, context?: CommThreadContext): CommEnvironment {
  const { settings, rank } = plan;
  const named = fabricsNamed(settings.fabrics);
  const thread = context === undefined ? 'main' : 'comm';
  const native = loadNative({ enabled: settings.native });
  const log = createLogger({ level: settings.logLevel, clock: systemClock, speaker: `rank ${rank}` });
  const budget = settings.sharedMemoryMax > 0 ? { budget: settings.sharedMemoryMax } : {};
  const allocator = createRegionAllocator({ native, owner: `rank ${rank}`, ...budget });
  const flight = new FlightRecorder({
    rank,
    clock: systemClock,
    // Only its dump is ever read.
    size: settings.flightRecorderDir === '' ? 0 : settings.flightRecorderSize,
    thread,
    libraryVersion: packageVersion,
  });
  const trace = settings.traceDir === '' ? nullRecorder : createRecorder({ clock: systemClock, thread, eventsMax: settings.traceEvents });
  return {
    clock: systemClock,
    log,
    recorder: new OperationLog(flight, trace, countersIn(plan.board) && new CallCounters()),
    allocator,
    kernels: createKernels({ native }),
    machine: createStepMachine({ native, clock: systemClock }),
    hostId: settings.hostId || hostIdentity(),
    hostName: hostname(),
    pid: process.pid,
    version: packageVersion,
    cpus: allowedCpus().count,
    residentBytes: () => process.memoryUsage.rss(),
    checkDescriptors: (count, doing) => checkDescriptors(`rank ${rank}`, count, doing, { rank }),
    ...(native && thread === 'comm' && { wires: native }),
    ...(context && { giveWay: context.giveWay, arbiter: context.arbiter }),
    serveStatus,
    meet: (world) =>
      meet(world, named, {
        regions: allocator,
        onRefused: (error) => log.debug(`a connection was refused: ${error.message}`),
        onNote: (message) => log.info(message),
      }),
    onFailure: (_, error) => {
      log.debug(`failed: ${error.message}`);
      if (settings.flightRecorderDir === '') return;
      try {
        writeFlightDump(settings.flightRecorderDir, flight.dump());
      } catch (thrown) {
        // The failure itself is what ranks are told of.
        log.warn(`the flight record of a failure is lost: ${messageOf(thrown)}`);
      }
    },
  };
}

async function meet(
  plan: WorldPlan,
  named: readonly FabricProvider[],
  parts: Pick<FabricOptions, 'regions' | 'onRefused' | 'onNote'>,
): Promise<Meeting> {
  const { settings, rank, size, joinTimeoutMs } = plan;
  const base = { clock: systemClock, random: systemRandom };
  const opened = await openWorldStore(plan, { connectTimeoutMs: Math.min(settings.connectTimeoutMs, joinTimeoutMs) });
  const fabrics = createFabrics(plan, named, {
    ...base,
    identity: { world: opened.world, rank },
    worldSize: size,
    secret: opened.secret,
    ...parts,
    listenHosts: mayBeOneHost(opened) ? ['127.0.0.1'] : ['0.0.0.0', '::'],
    settings,
  });
  const { world: name, store, servedBy, spec } = opened;
  return { name, store, servedBy, isLaunched: spec?.meeting.kind === 'address' && spec.meeting.hostedElsewhere, fabrics };
}

/** Ranks that meet on loopback are on one host; strangers then cannot even connect. */
function mayBeOneHost({ url, secret }: OpenedStore): boolean {
  if (url === undefined) return true;
  const parsed = parseStoreUrl(url);
  return parsed.kind === 'tcp' ? isLoopback(parsed.host) : secret.length === 0;
}

/** The fabrics this rank uses, best first. @throws ShoalError `unsupported`. */
function createFabrics({ settings }: WorldPlan, named: readonly FabricProvider[], options: FabricOptions): Fabric[] {
  const providers = named.length > 0 ? named : fabricProviders.filter((each) => each.isUsedUnasked());
  return providers.flatMap((provider) => {
    const reason = provider.unavailable(settings);
    if (reason !== undefined && named.length > 0)
      throw new ShoalError('unsupported', `fabric ${provider.name} cannot be used here: ${reason}`);
    return reason === undefined ? [provider.create(options)] : [];
  });
}
