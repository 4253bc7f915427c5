/** The report that a step of `.ci/run` leaves for its summary: JSON, in the file that the environment names. */

export interface CheckReport {
  readonly passed: number;
  readonly failures: readonly { readonly name: string; readonly message: string }[];
  readonly skipped: number;
}

export const reportFile: string | undefined = process.env.CHECK_REPORT;
