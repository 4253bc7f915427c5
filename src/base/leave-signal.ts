/** SIGTERM as the request to leave at the end of a step, in a process whose script asks whether it has come. */
export class LeaveSignal {
  #isAsked = false;
  #hasCome = false;
  readonly #note = (): void => void (this.#hasCome = true);

  /** From the first look on, SIGTERM does not end this process; a second one does. */
  get hasCome(): boolean {
    if (!this.#isAsked) process.once('SIGTERM', this.#note);
    this.#isAsked = true;
    return this.#hasCome;
  }

  /** SIGTERM is what it was. */
  close(): void {
    process.off('SIGTERM', this.#note);
  }
}

/** Ends this process as SIGTERM would have done, unless the script listens for it. */
export function leave(): void {
  process.kill(process.pid, 'SIGTERM');
}
