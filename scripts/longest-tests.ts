/** Test files of src/ that take 15 s or more, the longest first. Those of test/ are taken before anyway. */
export const longestTests: readonly string[] = [
  'src/collectives/mutation.test.ts',
  'src/collectives/algorithms/fairring.test.ts',
  'src/collectives/algorithms/algorithms.test.ts',
  'src/kvstore/collective/collective-store.test.ts',
  'src/group/random-programs.test.ts',
  'src/kvstore/ledger.test.ts',
  'src/scheduler/order-agreement.test.ts',
  'src/simulate/automatic-choice.test.ts',
  'src/group/reproducible.test.ts',
  'src/group/api/process-group.test.ts',
  'src/kvstore/scheduled/conformance.test.ts',
  'src/group/fairring.test.ts',
  'src/fabric/providers/libfabric.test.ts',
  'src/fabric/hooks/hooks.test.ts',
  'src/messaging/backends/zeromq.test.ts',
];
