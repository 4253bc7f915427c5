/** Duplicate keys of a JSON object. `JSON.parse` silently keeps the last one, so that two readers of the same bytes may see
 *  different contents; formats that forbid duplicates need somebody who looks. */

/** A key that the outermost object has twice. The text must be valid JSON. */
export function repeatedKey(text: string): string | undefined {
  const seen = new Set<string>();
  let depth = 0;
  // In an object of depth 1, the next string is a key.
  let keyExpected = false;
  for (let at = 0; at < text.length; at++) {
    const character = text[at];
    if (character === '"') {
      const end = endOfString(text, at);
      if (depth === 1 && keyExpected) {
        const key = JSON.parse(text.slice(at, end)) as string;
        if (seen.has(key)) return key;
        seen.add(key);
        keyExpected = false;
      }
      at = end - 1;
    } else if (character === '{' || character === '[') {
      depth++;
      keyExpected = depth === 1 && character === '{';
    } else if (character === '}' || character === ']') {
      depth--;
    } else if (character === ',' && depth === 1) {
      keyExpected = true;
    }
  }
  return undefined;
}

/** Index after the closing quote of the string that begins at `from`. */
function endOfString(text: string, from: number): number {
  let at = from + 1;
  while (text[at] !== '"') at += text[at] === '\\' ? 2 : 1;
  return at + 1;
}
