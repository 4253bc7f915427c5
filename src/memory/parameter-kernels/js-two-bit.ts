/** The two-bit encoding in JavaScript, the same bits as native/optimizers_loops.h: 11 is +threshold, 10 −threshold, 00 zero,
 *  01 not finite; four elements to a byte, the first in its highest bits; unused bits are 0. */

/** Shift of element j of a byte. */
const shifts = [6, 4, 2, 0];

export function encodeTwoBitJs(target: Uint8Array, gradient: Float32Array, residual: Float32Array, threshold: number): void {
  target.fill(0);
  for (let i = 0; i < gradient.length; i++) {
    const sum = Math.fround(residual[i] + gradient[i]);
    let code = 0;
    let sent = 0;
    if (!Number.isFinite(sum)) {
      code = 1;
    } else if (sum >= threshold) {
      code = 3;
      sent = threshold;
    } else if (sum <= -threshold) {
      code = 2;
      sent = -threshold;
    }
    residual[i] = code === 1 ? 0 : sum - sent;
    target[i >> 2] |= code << shifts[i & 3];
  }
}

export function decodeTwoBitJs(target: Float32Array, source: Uint8Array, threshold: number): void {
  const levels = [0, NaN, -threshold, threshold];
  for (let i = 0; i < target.length; i++) target[i] = levels[(source[i >> 2] >> shifts[i & 3]) & 3];
}
