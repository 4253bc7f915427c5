/** AUC, the measure of how well scores order examples. */
/** The probability that a click has the higher score of a click and a non-click: by ranks, ties count half. */
export function areaUnderCurve(labels: ArrayLike<number>, scores: ArrayLike<number>): number {
  const order = Array.from(labels, (_, k) => k).sort((a, b) => scores[a] - scores[b]);
  let [clicks, rankSum] = [0, 0];
  for (let from = 0; from < order.length;) {
    let to = from;
    while (to < order.length && scores[order[to]] === scores[order[from]]) to++;
    for (let k = from; k < to; k++) {
      if (labels[order[k]] === 0) continue;
      clicks++;
      rankSum += (from + to + 1) / 2;
    }
    from = to;
  }
  const others = order.length - clicks;
  return clicks === 0 || others === 0 ? NaN : (rankSum - (clicks * (clicks + 1)) / 2) / (clicks * others);
}
