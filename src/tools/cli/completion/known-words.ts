/** First arguments and values of options by name, where the declaration of a command does not list them: it loads nothing that only its
 *  action needs. */
import { collectiveNames } from '../../timing/collective.ts';
import { comparable } from '../../timing/compare.ts';
import { measuredOps, opNameOf, typeNameOf } from '../../timing/options.ts';
import { algorithms } from '../../../collectives/registry.ts';
import { fusePolicies } from '../../../graph/passes/fuse-policy.ts';
import { collectiveLibraries } from '../../../call/collective-libraries.ts';
import { dtypes } from '../../../memory/dtype.ts';
import { presets } from '../../simulate/model.ts';
import { collectives } from '../../../plan/ir.ts';

const algorithmNames = ['auto', ...algorithms.map(({ name }) => name)];
const dtypeNames = dtypes.map(({ name }) => name);

/** Words by command and option; '' stands for the first argument. */
const words: Readonly<Record<string, Readonly<Record<string, readonly string[]>>>> = {
  run: { '--nproc-per-node': ['auto'] },
  bench: {
    '': collectiveNames,
    '--datatype': dtypeNames.map(typeNameOf),
    '--op': measuredOps.map(opNameOf),
    '--algorithms': ['all', ...algorithmNames],
    '--backend': [...algorithmNames, ...Object.keys(collectiveLibraries)],
  },
  tune: { '--collectives': comparable },
  plan: { '': collectives, '--algorithm': algorithmNames, '--dtype': dtypeNames },
  simulate: { '': collectives, '--algorithms': algorithmNames, '--dtype': dtypeNames, '--preset': Object.keys(presets) },
  graph: { '--policy': fusePolicies.map(({ name }) => name) },
  completion: { '': ['bash', 'zsh', 'fish'] },
};

/** @param option its long name; default: the command's first argument. */
export function knownWords(command: string, option = ''): readonly string[] {
  return words[command]?.[option] ?? [];
}
