/** All mpirun of a user keep their files in one folder, which the last one removes while the next one uses it. */
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';

/** The variable that gives an mpirun a folder of its own, which is removed when the test has ended. */
export function mpirunFolder(): Record<string, string> {
  return { OMPI_MCA_orte_tmpdir_base: temporaryFolder('mpirun') };
}
