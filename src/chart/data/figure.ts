/** Figures as plain data: what a page draws as curves, and says as a table. */

export interface FigureSeries {
  readonly name: string;
  /** One per x; null where there is none. */
  readonly values: readonly (number | null)[];
  /** `bound`: a limit, drawn as one. Default: what was measured or computed. */
  readonly kind?: 'bound';
  /** The series whose colour it shares: the same thing from another source. */
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
  /** `bytes`: numbers are written as sizes. */
  readonly xUnit?: 'bytes';
  /** Of values. Default: ms. */
  readonly unit?: string;
  readonly x: readonly number[];
  readonly series: readonly FigureSeries[];
  /** Default: the series, a row per x. */
  readonly table?: FigureTable;
  readonly notes?: readonly string[];
}

export interface FigurePage {
  readonly title: string;
  /** Paragraphs before the figures. */
  readonly about?: readonly string[];
  /** What the names of series stand for. */
  readonly names?: readonly (readonly [name: string, text: string])[];
  readonly figures: readonly Figure[];
}
