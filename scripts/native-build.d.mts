/** Types of native-build.mjs, for tests. */
export function unportable(file: string, options?: { readonly floor?: string; readonly objdump?: string }): string | undefined;
