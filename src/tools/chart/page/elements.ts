/** Elements with text: nothing of a trace is ever parsed as markup. */

export function element<Tag extends keyof HTMLElementTagNameMap>(
  tag: Tag,
  options: { readonly class?: string; readonly text?: string; readonly children?: readonly (Node | string)[] } = {},
): HTMLElementTagNameMap[Tag] {
  const made = document.createElement(tag);
  if (options.class !== undefined) made.className = options.class;
  if (options.text !== undefined) made.textContent = options.text;
  made.append(...(options.children ?? []));
  return made;
}

export interface Column {
  readonly title: string;
  readonly isText?: boolean;
}

export function table(columns: readonly Column[], rows: readonly (readonly (string | Node)[])[]): HTMLElement {
  const classOf = (at: number): { class?: string } => (columns[at].isText === true ? { class: 'text' } : {});
  const head = element('tr', { children: columns.map(({ title }, at) => element('th', { text: title, ...classOf(at) })) });
  const body = rows.map((cells) =>
    element('tr', { children: cells.map((cell, at) => element('td', { children: [cell], ...classOf(at) })) }),
  );
  const whole = element('table', { children: [element('thead', { children: [head] }), element('tbody', { children: body })] });
  return element('div', { class: 'scroll', children: [whole] });
}

/** The first rows of a table, and a button that shows the others. */
export function shortened(count: number, shown: number, first: (count: number) => HTMLElement): HTMLElement {
  const place = element('div', { children: [first(Math.min(count, shown))] });
  if (count <= shown) return place;
  const more = element('button', { text: `${count - shown} more` });
  more.addEventListener('click', () => place.replaceChildren(first(count)));
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
