import { expect, it } from 'vitest';
import { systemClock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import { readSettings } from '../../base/settings/settings.ts';
import { MessagingContext } from '../../messaging/context.ts';
import { HashStore } from '../../store/hash-store.ts';
import type { NodeContext } from '../job/node-context.ts';
import { ServerRecords } from '../job/server-records.ts';
import { Blobs } from './blobs.ts';

it.each(['has not come', 'does not answer'])('closing waits for no process that %s', async (how) => {
  await using messaging = new MessagingContext({ world: how, secret: new Uint8Array(32), encryption: 'none' });
  const store = new HashStore({ clock: systemClock });
  const records = new ServerRecords(store);
  const settings = readSettings({});
  const own = { pid: 1, host: '', birth: 0, pulse: '' };
  const processes = { own: () => own };
  const node = { clock: systemClock, settings, records, messaging, processes, bindUrl: 'inproc://own' } as unknown as NodeContext;
  const blobs = await Blobs.open(node, { firstWorker: 0, localWorkers: 1, id: 0 });
  if (how === 'does not answer') await records.publishClient(1, { url: 'inproc://nobody', ...own });
  const sent = blobs.send(0, 1, { kind: 'feature', name: 'x', dtype: 'float32', values: Float32Array.of(1) });
  const refused = expect(sent).rejects.toMatchObject({ code: 'closed', message: 'the store was closed' });
  // It has asked where the other process is.
  await new Promise(setImmediate);
  await blobs.close(new ShoalError('closed', 'the store was closed'));
  await refused;
  await store.close();
});
