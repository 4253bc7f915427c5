/** The blocks of docs/tutorial.md: programs, commands, and the commands' output. */

/** Files to write before the commands, which run one after the other; and the lines that they print. */
export interface TutorialStep {
  readonly section: string;
  readonly files: readonly { readonly name: string; readonly text: string }[];
  readonly commands: readonly { readonly line: string; /** Where `# on <address>` says so. */ readonly machine?: string }[];
  readonly output: readonly RegExp[];
}

/** @throws Error for a block that no reader would run. */
export function tutorialSteps(page: string): TutorialStep[] {
  const steps: TutorialStep[] = [];
  let section = '';
  let files: { name: string; text: string }[] = [];
  for (const [all, heading, language, text] of page.matchAll(/^## (.+)$|^```(\w*)\n([\s\S]*?)^```$/gm)) {
    if (heading !== undefined) section = heading;
    else if (language === 'ts') {
      const [, name] = /^\/\/ ([\w.-]+)\n/.exec(text) ?? [];
      if (name === undefined) throw new Error(`a program of the tutorial does not begin with its name:\n${all}`);
      files.push({ name, text });
    } else if (language === 'sh') {
      steps.push({ section, files, commands: commandsOf(text), output: [] });
      files = [];
    } else if (language === 'text' && steps.length > 0) {
      const lines = text.trim().split('\n').map(patternOf);
      steps.push({ ...(steps.pop() as TutorialStep), output: lines });
    } else throw new Error(`a block of the tutorial is neither a program (ts), commands (sh) nor their output (text):\n${all}`);
  }
  if (files.length > 0) throw new Error(`the tutorial does not run ${files.map(({ name }) => name).join()}`);
  return steps;
}

function commandsOf(text: string): TutorialStep['commands'] {
  let machine: string | undefined;
  return text
    .trim()
    .split('\n')
    .flatMap((line) => {
      const [, address] = /^# on (\S+)$/.exec(line) ?? [];
      if (address !== undefined) machine = address;
      return address === undefined ? [{ line, ...(machine === undefined ? {} : { machine }) }] : [];
    });
}

/** A pattern of a line, in which `…` stands for anything. */
function patternOf(line: string): RegExp {
  const parts = line.split('…').map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, '\\$&'));
  return new RegExp(`^${parts.join('.*')}$`, 'm');
}
