/** The order in which vitest takes test files: those that are known to take long, then those that start processes, so that no worker is
 *  left with one of them at the end. Without this a fresh clone, which has no durations yet, goes by the size of files. */
import { relative } from 'node:path';
import { BaseSequencer, type TestSpecification } from 'vitest/node';
import { longestTests } from './longest-tests.ts';

export default class TestOrder extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const turn = ({ moduleId, project }: TestSpecification): number => {
      const path = relative(project.config.root, moduleId);
      const place = longestTests.indexOf(path);
      if (place >= 0) return place;
      return longestTests.length + (path.startsWith('test/') ? 0 : 1);
    };
    return (await super.sort(files)).toSorted((a, b) => turn(a) - turn(b));
  }
}
