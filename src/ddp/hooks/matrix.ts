/** The few products of matrices that low-rank approximation needs. They go row by row, as the second operand has few columns. */

export interface Matrix {
  readonly rows: number;
  readonly columns: number;
  readonly values: Float32Array;
}

/** result := a · b */
export function multiply(a: Matrix, b: Matrix, result: Matrix): void {
  for (let row = 0; row < a.rows; row++) {
    for (let k = 0; k < b.columns; k++) {
      let sum = 0;
      for (let column = 0; column < a.columns; column++) sum += a.values[row * a.columns + column] * b.values[column * b.columns + k];
      result.values[row * b.columns + k] = sum;
    }
  }
}

/** result := aᵀ · b */
export function multiplyTransposed(a: Matrix, b: Matrix, result: Matrix): void {
  result.values.fill(0);
  for (let row = 0; row < a.rows; row++) {
    for (let column = 0; column < a.columns; column++) {
      const value = a.values[row * a.columns + column];
      for (let k = 0; k < b.columns; k++) result.values[column * b.columns + k] += value * b.values[row * b.columns + k];
    }
  }
}

/** result := p · qᵀ */
export function outer(p: Matrix, q: Matrix, result: Float32Array): void {
  for (let row = 0; row < p.rows; row++) {
    for (let column = 0; column < q.rows; column++) {
      let sum = 0;
      for (let k = 0; k < p.columns; k++) sum += p.values[row * p.columns + k] * q.values[column * q.columns + k];
      result[row * q.rows + column] = sum;
    }
  }
}

/** A column is zero but for rounding when less than this part of its square is left after the other columns are subtracted. */
const rounding = 1e-12;

/** Makes columns orthogonal, and of length 1 (modified Gram–Schmidt); columns of which nothing is left become zeros. */
export function orthogonalise({ rows, columns, values }: Matrix): void {
  const squareOf = (k: number): number => {
    let square = 0;
    for (let row = 0; row < rows; row++) square += values[row * columns + k] ** 2;
    return square;
  };
  for (let k = 0; k < columns; k++) {
    const whole = squareOf(k);
    for (let before = 0; before < k; before++) {
      let dot = 0;
      for (let row = 0; row < rows; row++) dot += values[row * columns + k] * values[row * columns + before];
      for (let row = 0; row < rows; row++) values[row * columns + k] -= dot * values[row * columns + before];
    }
    const square = squareOf(k);
    const factor = square > whole * rounding ? 1 / Math.sqrt(square) : 0;
    for (let row = 0; row < rows; row++) values[row * columns + k] *= factor;
  }
}

/** Indices of the columns that are zeros. */
export function emptyColumns({ rows, columns, values }: Matrix): number[] {
  const empty: number[] = [];
  for (let k = 0; k < columns; k++) {
    let row = 0;
    while (row < rows && values[row * columns + k] === 0) row++;
    if (row === rows) empty.push(k);
  }
  return empty;
}
