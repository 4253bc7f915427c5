// What every rank of the benchmark does: joins a world, and leaves it.
import { initProcessGroup } from 'shoal';

const group = await initProcessGroup();
await group.destroy();
if (process.env.SHOW_MEMORY) console.log(JSON.stringify({ rssBytes: process.resourceUsage().maxRSS * 1024 }));
