/** The order in which vitest takes test files: those that start processes first, the longest by far, so that no worker is left
 *  with one of them at the end. Without this a fresh clone, which has no durations yet, goes by the size of files. */
import { relative } from 'node:path';
import { BaseSequencer, type TestSpecification } from 'vitest/node';

export default class TestOrder extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const sorted = await super.sort(files);
    const first = ({ moduleId, project }: TestSpecification): boolean => relative(project.config.root, moduleId).startsWith('test/');
    return [...sorted.filter(first), ...sorted.filter((file) => !first(file))];
  }
}
