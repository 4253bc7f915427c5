/** The timeline: rows of spans on a canvas. Drag or arrow keys move in time, ctrl and wheel or + and − zoom, a double click zooms to a
 *  span.
 *
 *      rank 0  main        ▌▌▌ ▌▌▌▌▌  ▌▌▌▌
 *              world waits ░░     ░░░          only what is in sight is drawn, and of spans that share a
 *      rank 1  main        ▌▌▌▌ ▌▌▌▌▌ ▌▌▌      pixel only the first; under them, where spans are left out, how busy the row was */
import type { ReportData, ReportRow } from '../data/report-data.ts';
import { element } from '../../chart/page/elements.ts';
import { Densities } from './densities.ts';
import { duration, tickStep } from '../../chart/page/units.ts';

const rowHeight = 18;
const axisHeight = 22;
const heightMax = 640;

/** The kind of a span, which gives it its colour. */
export type SpanKind = 'work' | 'wait' | 'other' | 'mark';

interface Colours {
  readonly [name: string]: string;
}

export class TimelineView {
  readonly element: HTMLElement;
  readonly #data: ReportData;
  readonly #canvas = element('canvas');
  readonly #scroller = element('div', { class: 'rows' });
  readonly #hover = element('div', { class: 'hover' });
  /** The stretch of time in sight, microseconds. */
  #from = 0;
  #to: number;
  #needle = '';
  readonly #densities: Densities;
  /** Whether each name, and each text of details, has the needle. */
  #matchingNames: readonly boolean[] = [];
  #matchingDetails: readonly boolean[] = [];
  #drawing = false;

  /** @param before what was in sight of the same run, which stays in sight. */
  constructor(data: ReportData, before?: TimelineView) {
    this.#data = data;
    this.#densities = new Densities(data);
    this.#to = Math.max(1, data.durationUs);
    if (before !== undefined) {
      this.#find(before.#needle);
      const isWhole = before.#from === 0 && before.#to >= before.#data.durationUs;
      if (!isWhole) [this.#from, this.#to] = before.range;
    }
    this.#hover.hidden = true;
    this.#canvas.tabIndex = 0;
    this.#canvas.setAttribute('aria-label', 'timeline of ranks and threads');
    const height = Math.min(heightMax, axisHeight + data.rows.length * rowHeight);
    // The canvas stays in sight while the rows behind it are scrolled.
    this.#canvas.style.height = `${height}px`;
    this.#canvas.style.position = 'sticky';
    this.#canvas.style.top = '0';
    const space = element('div', { children: [this.#canvas] });
    space.style.height = `${axisHeight + data.rows.length * rowHeight}px`;
    this.#scroller.style.maxHeight = `${height}px`;
    this.#scroller.append(space);
    this.element = element('div', {
      children: [this.#tools(), element('div', { class: 'timeline', children: [this.#scroller] }), this.#hover],
    });
    this.#listen();
  }

  /** The stretch of time in sight, for tests and links. */
  get range(): readonly [from: number, to: number] {
    return [this.#from, this.#to];
  }

  /** The kinds of all spans. */
  get kinds(): ReadonlySet<SpanKind> {
    return new Set(this.#data.rows.flatMap((row) => row.starts.map((_, at) => this.#kindOf(row, at))));
  }

  draw(): void {
    if (this.#drawing) return;
    this.#drawing = true;
    requestAnimationFrame(() => {
      this.#drawing = false;
      this.#paint();
    });
  }

  #tools(): HTMLElement {
    const search = element('input');
    search.type = 'search';
    search.value = this.#needle;
    search.placeholder = 'find a name, a call site';
    search.addEventListener('input', () => {
      this.#find(search.value.trim().toLowerCase());
      this.draw();
    });
    const button = (text: string, title: string, act: () => void): HTMLElement => {
      const made = element('button', { text });
      made.title = title;
      made.addEventListener('click', act);
      return made;
    };
    return element('div', {
      class: 'tools',
      children: [
        search,
        button('+', 'zoom in', () => this.#zoom(0.5)),
        button('−', 'zoom out', () => this.#zoom(2)),
        button('all', 'the whole run', () => this.#show(0, this.#data.durationUs)),
      ],
    });
  }

  #listen(): void {
    const canvas = this.#canvas;
    this.#scroller.addEventListener('scroll', () => this.draw());
    canvas.addEventListener(
      'wheel',
      (event) => {
        if (!event.ctrlKey && !event.metaKey) return;
        event.preventDefault();
        this.#zoom(1.0015 ** event.deltaY, this.#timeAt(event.offsetX));
      },
      { passive: false },
    );
    let draggedFrom: number | undefined;
    canvas.addEventListener('pointerdown', (event) => {
      draggedFrom = event.offsetX;
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener('pointerup', () => (draggedFrom = undefined));
    canvas.addEventListener('pointermove', (event) => {
      if (draggedFrom === undefined) return this.#point(event);
      const moved = ((draggedFrom - event.offsetX) / this.#width) * (this.#to - this.#from);
      draggedFrom = event.offsetX;
      this.#show(this.#from + moved, this.#to + moved);
    });
    canvas.addEventListener('pointerleave', () => (this.#hover.hidden = true));
    canvas.addEventListener('dblclick', (event) => {
      const found = this.#spanAt(event.offsetX, event.offsetY);
      if (found === undefined) return;
      const { row, at } = found;
      const margin = Math.max(1, row.durations[at]) * 0.5;
      this.#show(row.starts[at] - margin, row.starts[at] + row.durations[at] + margin);
    });
    canvas.addEventListener('keydown', ({ key }) => {
      const step = (this.#to - this.#from) / 4;
      if (key === 'ArrowLeft') this.#show(this.#from - step, this.#to - step);
      else if (key === 'ArrowRight') this.#show(this.#from + step, this.#to + step);
      else if (key === '+') this.#zoom(0.5);
      else if (key === '-') this.#zoom(2);
    });
    addEventListener('resize', () => this.draw());
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.draw());
  }

  /** Room for the names of rows. */
  get #labelWidth(): number {
    return Math.min(170, Math.round(this.#canvas.clientWidth * 0.3));
  }

  get #width(): number {
    return Math.max(1, this.#canvas.clientWidth - this.#labelWidth);
  }

  #timeAt(x: number): number {
    return this.#from + ((x - this.#labelWidth) / this.#width) * (this.#to - this.#from);
  }

  #zoom(factor: number, center = (this.#from + this.#to) / 2): void {
    this.#show(center - (center - this.#from) * factor, center + (this.#to - center) * factor);
  }

  #show(from: number, to: number): void {
    const end = Math.max(1, this.#data.durationUs);
    const span = Math.min(end, Math.max(1, to - from));
    this.#from = Math.max(0, Math.min(from, end - span));
    this.#to = this.#from + span;
    this.draw();
  }

  #spanAt(x: number, y: number): { row: ReportRow; at: number } | undefined {
    const row = this.#data.rows[Math.floor((y - axisHeight + this.#scroller.scrollTop) / rowHeight)];
    if (row === undefined || x < this.#labelWidth || y < axisHeight) return undefined;
    const time = this.#timeAt(x);
    const slack = (2 / this.#width) * (this.#to - this.#from);
    // Those that begin later lie inside earlier ones, and above them.
    for (let at = firstAfter(row.starts, time + slack) - 1; at >= 0 && at > -1; at--) {
      if (row.starts[at] + row.durations[at] >= time - slack) return { row, at };
      if (time - row.starts[at] > this.#to - this.#from) break;
    }
    return undefined;
  }

  #point(event: PointerEvent): void {
    const found = this.#spanAt(event.offsetX, event.offsetY);
    this.#hover.hidden = found === undefined;
    if (found === undefined) return;
    const { row, at } = found;
    const { names } = this.#data;
    const title = element('b', { text: names[row.labels[at]] });
    const when = `rank ${row.rank}, ${row.name}: ${duration(row.durations[at])} at ${duration(row.starts[at])}`;
    this.#hover.replaceChildren(title, element('div', { text: when }), element('div', { text: this.#detailOf(row, at) }));
    this.#hover.style.left = `${Math.min(event.clientX + 12, innerWidth - this.#hover.offsetWidth - 8)}px`;
    this.#hover.style.top = `${Math.min(event.clientY + 16, innerHeight - this.#hover.offsetHeight - 8)}px`;
  }

  #paint(): void {
    const canvas = this.#canvas;
    const scale = devicePixelRatio;
    canvas.width = Math.round(canvas.clientWidth * scale);
    canvas.height = Math.round(canvas.clientHeight * scale);
    const context = canvas.getContext('2d')!;
    context.scale(scale, scale);
    context.font = '11px system-ui, sans-serif';
    context.textBaseline = 'middle';
    const colours = coloursOf(canvas);
    this.#paintAxis(context, colours);
    const { rows } = this.#data;
    const top = this.#scroller.scrollTop;
    const first = Math.floor(top / rowHeight);
    const last = Math.min(rows.length, first + Math.ceil(canvas.clientHeight / rowHeight) + 1);
    for (let at = first; at < last; at++) {
      const y = axisHeight + at * rowHeight - top;
      if (y > axisHeight - rowHeight) this.#paintRow(context, colours, { row: rows[at], y, isFirst: rows[at - 1]?.rank !== rows[at].rank });
    }
    // Over rows that are half scrolled away.
    context.clearRect(0, 0, canvas.clientWidth, axisHeight);
    this.#paintAxis(context, colours);
  }

  #paintAxis(context: CanvasRenderingContext2D, colours: Colours): void {
    const step = tickStep(this.#to - this.#from, this.#width / 80);
    context.fillStyle = colours.faint;
    context.strokeStyle = colours.line;
    for (let time = Math.ceil(this.#from / step) * step; time <= this.#to; time += step) {
      const x = this.#labelWidth + ((time - this.#from) / (this.#to - this.#from)) * this.#width;
      const label = duration(time);
      if (x + 3 + context.measureText(label).width < this.#canvas.clientWidth) context.fillText(label, x + 3, axisHeight / 2);
      context.beginPath();
      context.moveTo(x, 0);
      context.lineTo(x, this.#canvas.clientHeight);
      context.stroke();
    }
  }

  #paintRow(context: CanvasRenderingContext2D, colours: Colours, place: { row: ReportRow; y: number; isFirst: boolean }): void {
    const { row, y, isFirst } = place;
    context.fillStyle = colours.faint;
    const label = isFirst ? `rank ${row.rank}  ${row.name}` : row.name;
    const labelWidth = this.#labelWidth;
    const indent = isFirst ? 6 : 18;
    context.fillText(fitted(context, label, labelWidth - indent - 6), indent, y + rowHeight / 2);
    if (isFirst) {
      context.fillStyle = colours.line;
      context.fillRect(0, y, this.#canvas.clientWidth, 1);
    }
    const perUs = this.#width / (this.#to - this.#from);
    this.#paintDensity(context, colours, { row, y });
    let painted = labelWidth - 1;
    for (let at = firstVisible(row, this.#from); at < row.starts.length && row.starts[at] < this.#to; at++) {
      const left = Math.max(labelWidth, labelWidth + (row.starts[at] - this.#from) * perUs);
      const right = Math.min(labelWidth + this.#width, labelWidth + (row.starts[at] + row.durations[at] - this.#from) * perUs);
      const isMatch = this.#matches(row, at);
      // A span that adds nothing to its pixel.
      if (right < labelWidth || (right <= painted + 0.5 && right - left < 1 && !(isMatch && this.#needle !== ''))) continue;
      painted = Math.max(painted, right);
      const name = this.#data.names[row.labels[at]];
      context.globalAlpha = isMatch ? 1 : 0.15;
      context.fillStyle = colours[this.#kindOf(row, at)];
      context.fillRect(left, y + 3, Math.max(1, right - left), rowHeight - 5);
      if (right - left > 40) {
        context.fillStyle = colours[name.endsWith(' wait') ? 'on-wait' : 'on-fill'];
        context.fillText(fitted(context, name, right - left - 8), left + 4, y + rowHeight / 2 + 0.5);
      }
    }
    context.globalAlpha = 1;
  }

  #kindOf({ labels, durations, details }: ReportRow, at: number): SpanKind {
    if (this.#data.names[labels[at]].endsWith(' wait')) return 'wait';
    if (durations[at] === 0) return 'mark';
    return details[at] < 0 ? 'other' : 'work';
  }

  #matches(row: ReportRow, at: number): boolean {
    if (this.#needle === '') return true;
    if (this.#matchingNames[row.labels[at]] || this.#matchingDetails[row.details[at]]) return true;
    // Numbers are of single spans.
    return /\d/.test(this.#needle) && this.#detailOf(row, at).toLowerCase().includes(this.#needle);
  }

  #find(needle: string): void {
    const has = (text: string): boolean => text.toLowerCase().includes(needle);
    this.#needle = needle;
    this.#matchingNames = this.#data.names.map(has);
    this.#matchingDetails = this.#data.details.map(has);
  }

  #detailOf(row: ReportRow, at: number): string {
    const text = this.#data.details[row.details[at]] ?? '';
    return text.replaceAll('\uE000', () => String(row.firsts[at] ?? '')).replaceAll('\uE001', () => String(row.seconds[at] ?? ''));
  }

  /** Paints the row's busy time, and the waiting in it, from the bottom up. */
  #paintDensity(context: CanvasRenderingContext2D, colours: Colours, { row, y }: { row: ReportRow; y: number }): void {
    if (row.density === undefined) return;
    const perUs = this.#width / (this.#to - this.#from);
    const height = rowHeight - 5;
    context.globalAlpha = 0.45;
    this.#densities.each(row, { fromUs: this.#from, toUs: this.#to, stretchesMax: this.#width }, (startUs, endUs, busy, waiting) => {
      const left = this.#labelWidth + Math.max(0, (startUs - this.#from) * perUs);
      const right = this.#labelWidth + Math.min(this.#width, (endUs - this.#from) * perUs);
      const bottom = y + 3 + height;
      context.fillStyle = colours.wait;
      context.fillRect(left, bottom - waiting * height, right - left, waiting * height);
      context.fillStyle = colours.work;
      context.fillRect(left, bottom - Math.min(1, waiting + busy) * height, right - left, (Math.min(1, waiting + busy) - waiting) * height);
    });
    context.globalAlpha = 1;
  }
}

/** The part of the text for which there is room. */
function fitted(context: CanvasRenderingContext2D, text: string, width: number): string {
  if (context.measureText(text).width <= width) return text;
  for (let letters = text.length - 1; letters > 0; letters--) {
    const cut = `${text.slice(0, letters)}…`;
    if (context.measureText(cut).width <= width) return cut;
  }
  return '';
}

/** The first index whose start is after `time`. */
function firstAfter(starts: readonly number[], time: number): number {
  let [low, high] = [0, starts.length];
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (starts[middle] <= time) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Spans that began before `from` and are still open there come before it; those of a row nest, so few are open. */
function firstVisible(row: ReportRow, from: number): number {
  let at = firstAfter(row.starts, from);
  for (let back = 1; back <= 64 && at - back >= 0; back++) if (row.starts[at - back] + row.durations[at - back] >= from) at -= back;
  return at;
}

function coloursOf(canvas: Element): Colours {
  const style = getComputedStyle(canvas);
  const names = ['text', 'faint', 'line', 'wait', 'work', 'other', 'mark', 'on-fill', 'on-wait'];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}
