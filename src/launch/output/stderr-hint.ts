/** The meaning of a rank's last output: the error that ended it, and advice where its words would puzzle the user. */

const hints: readonly { readonly words: string; readonly hint: string }[] = [
  {
    words: 'Top-level await is currently not supported with the "cjs" output format',
    hint: 'package.json says "type": "commonjs", as `npm init` writes it: make that "module", or name the script .mts',
  },
];

/** A hint beside the last words of a process; undefined where these speak for themselves. */
export function stderrHint(stderr: string): string | undefined {
  return hints.find(({ words }) => stderr.includes(words))?.hint;
}

/** `TypeError: x is not a function`: what Node.js writes of an error that nobody caught, from its last one. */
export function lastError(stderr: string): string | undefined {
  return [...stderr.matchAll(/^(?:Uncaught )?(\w*(?:Error|Exception)\b(?: \[\w+\])?: .+)$/gm)].at(-1)?.[1];
}
