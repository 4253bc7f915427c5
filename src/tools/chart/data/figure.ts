/** Figures as plain data, which a page draws as curves and lists as a table. */

export interface FigureSeries {
  readonly name: string;
  /** One value per x; null for a missing one. */
  readonly values: readonly (number | null)[];
  /** `bound`: the series is a limit, and drawn as one. Default: measured or computed values. */
  readonly kind?: 'bound';
  /** The series whose colour it shares: the same quantity from another source. */
  readonly of?: string;
}

export interface FigureTable {
  readonly head: readonly string[];
  readonly rows: readonly (readonly string[])[];
}

/** One chart: every series has one value per x. */
export interface Figure {
  readonly title: string;
  readonly xLabel: string;
  /** `bytes`: the numbers are written as sizes. */
  readonly xUnit?: 'bytes';
  /** Unit of the values. Default: ms. */
  readonly unit?: string;
  readonly x: readonly number[];
  readonly series: readonly FigureSeries[];
  /** The table. Default: the series, a row per x. */
  readonly table?: FigureTable;
  readonly notes?: readonly string[];
}

export interface FigurePage {
  readonly title: string;
  /** Paragraphs before the figures. */
  readonly about?: readonly string[];
  /** Explanations of the names of series. */
  readonly names?: readonly (readonly [name: string, text: string])[];
  readonly figures: readonly Figure[];
}
