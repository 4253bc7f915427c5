/** Elements with text: nothing of a trace is ever parsed as markup. */

export function element<Tag extends keyof HTMLElementTagNameMap>(
  tag: Tag,
  options: { readonly class?: string | undefined; readonly text?: string; readonly children?: readonly (Node | string)[] } = {},
): HTMLElementTagNameMap[Tag] {
  const made = document.createElement(tag);
  if (options.class !== undefined) made.className = options.class;
  if (options.text !== undefined) made.textContent = options.text;
  made.append(...(options.children ?? []));
  return made;
}

export interface Column<Row> {
  readonly title: string;
  readonly class?: 'text';
  readonly cell: (row: Row) => string | Node;
}

export function table<Row>(columns: readonly Column<Row>[], rows: readonly Row[]): HTMLElement {
  const head = element('tr', { children: columns.map(({ title, class: name }) => element('th', { text: title, class: name })) });
  const body = rows.map((row) =>
    element('tr', { children: columns.map(({ cell, class: name }) => element('td', { children: [cell(row)], class: name })) }),
  );
  const whole = element('table', { children: [element('thead', { children: [head] }), element('tbody', { children: body })] });
  return element('div', { class: 'scroll', children: [whole] });
}

/** The first rows of a table, and a button that shows the others. */
export function shortTable<Row>(columns: readonly Column<Row>[], rows: readonly Row[], shown: number): HTMLElement {
  const place = element('div', { children: [table(columns, rows.slice(0, shown))] });
  if (rows.length <= shown) return place;
  const more = element('button', { text: `${rows.length - shown} more` });
  more.addEventListener('click', () => place.replaceChildren(table(columns, rows)));
  place.append(element('div', { class: 'tools', children: [more] }));
  return place;
}

/** A section whose address in the page is its title in small letters. */
export function section(title: string, ...children: readonly (Node | string)[]): HTMLElement {
  const made = element('section', { children: [element('h2', { text: title }), ...children] });
  made.id = title.toLowerCase().replaceAll(/[^a-z0-9]+/g, '-');
  return made;
}

/** A legend of colours. */
export function legend(entries: readonly (readonly [colour: string, text: string])[]): HTMLElement {
  const each = entries.map(([colour, text]) => element('span', { children: [element('i', { class: colour }), text] }));
  return element('div', { class: 'legend', children: each });
}
