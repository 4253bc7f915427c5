/** Finds duplicate keys of a JSON object. `JSON.parse` silently keeps the last one, so that two readers of the same bytes may see
 *  different contents; formats that forbid duplicates need this check. */

/** A key that some object has twice. The text must be valid JSON. */
export function repeatedKey(text: string): string | undefined {
  /** Keys of every object and array around the place that is read; an array has none. */
  const keys: (Set<string> | undefined)[] = [];
  let keyExpected = false;
  for (let at = 0; at < text.length; at++) {
    const character = text[at];
    if (character === '"') {
      const end = endOfString(text, at);
      const around = keys.at(-1);
      if (around !== undefined && keyExpected) {
        const key = JSON.parse(text.slice(at, end)) as string;
        if (around.has(key)) return key;
        around.add(key);
        keyExpected = false;
      }
      at = end - 1;
    } else if (character === '{' || character === '[') {
      keys.push(character === '{' ? new Set() : undefined);
      keyExpected = character === '{';
    } else if (character === '}' || character === ']') {
      keys.pop();
    } else if (character === ',') {
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
