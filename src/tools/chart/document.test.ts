/** Pages stand by themselves, and their data stays text. */
import { expect, it } from 'vitest';
import { figuresPage, picturesPage } from './document.ts';
import { picture, pictureText, shortened } from './picture.ts';

const evil = '</script><script>globalThis.ran = true</script><b>&"';

it('a page of figures has its data as JSON, and loads nothing', () => {
  const series = [
    { name: evil, values: [1, null, 30] },
    { name: 'c', values: [2, 2, 2] },
  ];
  const page = figuresPage({ title: evil, figures: [{ title: evil, xLabel: 'x', x: [1, 10, 100], series }] });
  expect(page.match(/<script/g)).toHaveLength(2);
  expect(page).not.toContain('<b>');
  expect(page).not.toMatch(/NaN|<link|src=|href=/);
  const [, data] = /id="data">(.*?)<\/script>/s.exec(page)!;
  expect(JSON.parse(data)).toMatchObject({ title: evil, figures: [{ series }] });
  expect(page).toMatch(/default-src 'none'; script-src 'sha256-[^']+'; style-src 'sha256-[^']+' 'sha256-[^']+'"/);
});

it('a page of pictures runs nothing at all', () => {
  const svg = picture(evil, { width: 100.4, height: 50 }, [pictureText({ x: 1, y: 2 }, evil)]);
  const page = picturesPage(evil, [{ title: evil, svg }]);
  expect(page).toContain("script-src 'none'");
  expect(page).not.toMatch(/<script|<b>/);
  expect(page).toContain('viewBox="0 0 101 50"');
});

it('the end of a long name is kept', () => {
  expect([shortened('short', 100), shortened('a/long/name', 50)]).toEqual(['short', '…/name']);
});
