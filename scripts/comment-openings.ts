/** Comments that open without a subject ("Of an event loop over sockets", "What the worker fed"): nobody understands them alone.
 *  A good comment is a sentence, or says what the thing is: "Bytes in flight per link." The check knows openings, not grammar. */

/** A comment that begins a line, and the rest of that line. */
export interface Comment {
  /** 1 for the first line of the file. */
  readonly line: number;
  readonly text: string;
}

const words = 'Of|By|In|What|Who|Whom|Whose|Which|Where|From|To|For|As|With|Among|Between|Until|How|Why';
const opening = new RegExp(`^(${words})\\b`);
/** Openings that are whole phrases: "By default", "For each rank, …", "As soon as the last one leaves, …". */
const phrase = new RegExp(
  '^(?:(?:In place|In order|By default|For example|For instance)\\b|(?:As (?:long|soon) as|Where|Until) [^,]+,|To [a-z]+ [^,]+,' +
    '|(?:In|From|For|With|Between) [^,.]{1,40},)',
);

/** Comments that begin a line; a `//` below a `//` continues that comment. */
export function commentsOf(text: string): Comment[] {
  const lines = text.split('\n');
  const isLineComment = (line: string | undefined): boolean => line !== undefined && /^\s*\/\//.test(line);
  return lines.flatMap((line, index) => {
    const comment = /^\s*(?:\/\*\*?|\/\/\/?)\s+(.*)/.exec(line);
    if (comment === null || (isLineComment(line) && isLineComment(lines[index - 1]))) return [];
    return [{ line: index + 1, text: comment[1].replace(/\*\/\s*$/, '').trim() }];
  });
}

export function opensWithoutSubject(comment: string): boolean {
  return opening.test(comment) && !phrase.test(comment);
}
