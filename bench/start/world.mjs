// Every rank of the benchmark: joins a world, and leaves it.
import { initProcessGroup } from 'shoal';

const group = await initProcessGroup();
await group.destroy();
if (process.env.SHOW_MEMORY) console.log(JSON.stringify({ rssBytes: process.resourceUsage().maxRSS * 1024 }));
