/** Entries of maps: lists by key, and values that are made when they are first asked for; lists as text. */

/** Adds a value to the list of its key. */
export function pushTo<K, T>(lists: Map<K, T[]>, key: K, value: T): void {
  const list = lists.get(key);
  if (list) list.push(value);
  else lists.set(key, [value]);
}

/** The value of a key, made for the first who asks. */
export function getOrMake<K, T extends {} | null>(map: Pick<Map<K, T>, 'get'> & { set(k: K, v: T): unknown }, key: K, make: () => T): T {
  let value = map.get(key);
  if (value === undefined) map.set(key, (value = make()));
  return value;
}

/** The same as `Map.groupBy`, which Node.js 20 does not have: keys are in the order of their first items. */
export function groupBy<K, T>(items: Iterable<T>, keyOf: (item: T) => K): Map<K, T[]> {
  const groups = new Map<K, T[]>();
  for (const item of items) pushTo(groups, keyOf(item), item);
  return groups;
}

/** `a, b`, or `a, b and 3 more`. */
export function listed(texts: readonly (string | number)[], most = 8): string {
  const shown = texts.slice(0, most).join(', ');
  return texts.length > most ? `${shown} and ${texts.length - most} more` : shown;
}
