/** The script that `shoal info -n` runs on every rank: joins, and rank 0 says what ranks reach each other over. */
import { must } from '../../../base/assert.ts';
import { initProcessGroup } from '../../../group/init.ts';
import { CommGroup } from '../../../group/api/process-group.ts';

const group = await initProcessGroup();
if (group.rank === 0) {
  const { hosts, linkMatrix } = must(group instanceof CommGroup ? group : undefined, () => 'a world is a CommGroup');
  process.stdout.write(`${JSON.stringify({ hosts, fabrics: linkMatrix })}\n`);
}
await group.destroy();
