/** The order in which vitest takes test files: the longest first, so that no worker is left with one of them at the end. Files that
 *  were not measured come after those that start processes. */
import { relative } from 'node:path';
import { BaseSequencer, type TestSpecification } from 'vitest/node';
import { readDurations } from './test-durations.ts';

export default class TestOrder extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const durations = readDurations();
    const seconds = ({ moduleId, project }: TestSpecification): number => {
      const path = relative(project.config.root, moduleId);
      return durations.get(path) ?? (path.startsWith('test/') ? 1 : 0);
    };
    return (await super.sort(files)).toSorted((a, b) => seconds(b) - seconds(a));
  }
}
