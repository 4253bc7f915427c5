/** Callbacks that run as soon as the running code has returned. */

/** A resolved promise: its `then` is a microtask, whereas node's `queueMicrotask` makes an `AsyncResource` each time. */
export const settled = Promise.resolve();
