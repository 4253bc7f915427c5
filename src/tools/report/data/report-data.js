/** What the page is made of: plain data, written into it as JSON. Times are microseconds from the run's first event, on rank 0's clock. */
export {};
