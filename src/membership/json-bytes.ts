/** Plain data as bytes of a store. */
export function encode(value: unknown): Uint8Array {
  return Buffer.from(JSON.stringify(value));
}

export function decode(value: Uint8Array): unknown {
  return JSON.parse(Buffer.from(value).toString());
}
