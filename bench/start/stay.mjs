// A rank that stays for as long as it takes until compiled code is kept (src/base/packages/cached-code.ts).
import { setTimeout } from 'node:timers/promises';
import { initProcessGroup } from 'shoal';

const group = await initProcessGroup();
await setTimeout(2000);
await group.destroy();
