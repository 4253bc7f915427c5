/** Values of metrics as the text that Prometheus reads. The package is loaded with this file, which is built apart: processes without
 *  metrics never read it. */
import { AggregatorRegistry } from 'prom-client';
import { groupBy } from '../base/collections/lists.ts';
import { metricDefinitions, type MetricKey, type Sample } from './definitions.ts';

/** Type of the text, for the answer's header. */
export const contentType = AggregatorRegistry.PROMETHEUS_CONTENT_TYPE;

/** The text of a page. Equal labels add up. */
export async function pageOf(samples: readonly Sample[]): Promise<string> {
  const byMetric = groupBy(samples, ({ metric }) => metric);
  const families = (Object.keys(metricDefinitions) as MetricKey[]).flatMap((key) => {
    const values = byMetric.get(key);
    if (values === undefined) return [];
    const { name, type, help } = metricDefinitions[key];
    const named = values.map(({ labels, value, part = '' }) => ({ labels, value, metricName: `${name}${part}` }));
    return [{ name, type, help, aggregator: 'sum', values: named }];
  });
  return AggregatorRegistry.aggregate([families]).metrics();
}
