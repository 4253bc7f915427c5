/** Tasks in the order in which they were added, each in one list at most: the links are the tasks' own, so that nothing is allocated or
 *  hashed for a task. */

/** What a task has for its list. */
export interface Listed<T extends Listed<T>> {
  list: TaskList<T> | undefined;
  /** Its neighbours there. */
  before: T | undefined;
  after: T | undefined;
}

export class TaskList<T extends Listed<T>> {
  #first: T | undefined;
  #last: T | undefined;
  #size = 0;

  get size(): number {
    return this.#size;
  }

  /** Added before the others. */
  get first(): T | undefined {
    return this.#first;
  }

  /** Of a task that is in no list. */
  add(task: T): void {
    const last = this.#last;
    task.list = this;
    task.before = last;
    if (last === undefined) this.#first = task;
    else last.after = task;
    this.#last = task;
    this.#size++;
  }

  /** @returns whether it was there. */
  delete(task: T): boolean {
    if (task.list !== this) return false;
    const { before, after } = task;
    if (before === undefined) this.#first = after;
    else before.after = after;
    if (after === undefined) this.#last = before;
    else after.before = before;
    task.list = undefined;
    task.before = undefined;
    task.after = undefined;
    this.#size--;
    return true;
  }

  /** As they are now. */
  toArray(): T[] {
    const all: T[] = [];
    for (let task = this.#first; task !== undefined; task = task.after) all.push(task);
    return all;
  }
}
