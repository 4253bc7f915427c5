/** A key is TensorFlow's text, there and back; anything else is refused. */
import { describe, expect, it } from 'vitest';
import { formatRendezvousKey, parseRendezvousKey } from './rendezvous-key.ts';

const ps = ['/job:ps/task:0/device:CPU:0'];
const worker = '/job:worker/task:0/device:CPU:0';

describe('rendezvous keys', () => {
  it('have the form of TensorFlow, there and back', () => {
    const key = { sendDevice: ps[0], incarnation: 0xdeadbeefn, recvDevice: worker, name: 'edge_3_tower/h1', frame: 0, iteration: 0 };
    const text = `${ps[0]};00000000deadbeef;${worker};edge_3_tower/h1;0:0`;
    expect(formatRendezvousKey(key)).toBe(text);
    expect(parseRendezvousKey(text)).toEqual(key);
  });

  it.each([
    '',
    'a;b;c',
    `${ps[0]};1;${worker};x;0:0`,
    `${ps[0]};00000000deadbeef;${worker};x;0`,
    `;00000000deadbeef;b;x;0:0`,
    `${ps[0]};00000000deadbeef;${worker};x;0:0;`,
    `${ps[0]};00000000DEADBEEF;${worker};x;0:0`,
    `${ps[0]};00000000deadbeef;;x;0:0`,
    `${ps[0]};00000000deadbeef;${worker};;0:0`,
    `${ps[0]};00000000deadbeef;${worker};a;b;0:0`,
    `${ps[0]};00000000deadbeef;${worker};x;-1:0`,
    `${'d'.repeat(1001)};00000000deadbeef;${worker};x;0:0`,
    `${ps[0]};00000000deadbeef;${worker};${'n'.repeat(4001)};0:0`,
  ])('%j is none', (text) => {
    expect(() => parseRendezvousKey(text)).toThrow(/is no rendezvous key/);
  });
});
