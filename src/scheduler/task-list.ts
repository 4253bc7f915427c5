/** A list of tasks in the order in which they were added. Each task is in one list at most, and holds the links itself, so that
 *  nothing is allocated or hashed for a task. */

/** Fields that a task has for its list. */
export interface Listed<T extends Listed<T>> {
  list: TaskList<T> | undefined;
  /** The neighbour that was added before. */
  before: T | undefined;
  /** The neighbour that was added later. */
  after: T | undefined;
}

export class TaskList<T extends Listed<T>> {
  /** The task that was added before the others. */
  first: T | undefined;
  size = 0;
  #last: T | undefined;

  /** Adds a task that is in no list. */
  add(task: T): void {
    const last = this.#last;
    task.list = this;
    task.before = last;
    if (last === undefined) this.first = task;
    else last.after = task;
    this.#last = task;
    this.size++;
  }

  /** @returns true if it was in the list. */
  delete(task: T): boolean {
    if (task.list !== this) return false;
    const { before, after } = task;
    if (before === undefined) this.first = after;
    else before.after = after;
    if (after === undefined) this.#last = before;
    else after.before = before;
    task.list = undefined;
    task.before = undefined;
    task.after = undefined;
    this.size--;
    return true;
  }

  /** The tasks as they are now. */
  toArray(): T[] {
    const all: T[] = [];
    for (let task = this.first; task !== undefined; task = task.after) all.push(task);
    return all;
  }
}
