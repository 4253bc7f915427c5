/** What the last words of a rank mean, and what to do, where they would puzzle its user. */

const hints: readonly { readonly words: string; readonly hint: string }[] = [
  {
    words: 'Top-level await is currently not supported with the "cjs" output format',
    hint: 'package.json says "type": "commonjs", as `npm init` writes it: make that "module", or name the script .mts',
  },
];

/** Undefined where the words speak for themselves. */
export function stderrHint(stderr: string): string | undefined {
  return hints.find(({ words }) => stderr.includes(words))?.hint;
}
