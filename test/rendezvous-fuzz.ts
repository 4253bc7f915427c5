/** Hostile control messages against both ends of RecvTensor.
 *
 *    npx tsx test/rendezvous-fuzz.ts [--inputs 1000000] [--seed 1] */
import { parseArgs } from 'node:util';
import { seededRandom } from '../src/base/random.ts';
import { fuzz } from '../src/rendezvous/testing/fuzz.ts';

const { values } = parseArgs({ options: { inputs: { type: 'string', default: '1000000' }, seed: { type: 'string', default: '1' } } });
const { inputs, refused } = fuzz(seededRandom(Number(values.seed)), Number(values.inputs));
console.log(`${inputs} inputs, ${refused} refusals, seed ${values.seed}`);
