/** A run's page. */
import { drawnDocument } from '../chart/document.ts';
import type { ReportData } from './data/report-data.ts';

/** @param options `live`: it is served by `WatchServer`, and asks it for more. @throws ShoalError `config` when the package is not
 *  built. */
export function reportPage(data: ReportData, { live = false }: { readonly live?: boolean } = {}): string {
  return drawnDocument({ title: data.title, program: 'tools/report/page/main.js', style: 'tools/report/page/style.css', data, live });
}
