/** `npm run check`: prints every violation of the house rules; exits 1 when there is one. */
import { checkSources, formatViolation } from './house-rules.ts';
import { readLayerTable, readSources } from './repository.ts';

const sources = readSources();
const violations = checkSources(sources, readLayerTable());
for (const violation of violations) console.error(formatViolation(violation));
console.log(`house rules: ${sources.length} files, ${violations.length} violations`);
process.exitCode = violations.length > 0 ? 1 : 0;
