/** Figures as plain data, which a page draws as curves and lists as a table. */
export {};
