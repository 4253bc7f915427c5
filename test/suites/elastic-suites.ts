/** The suites of other projects whose tests are about ranks that are lost, leave and join. */
import type { ForeignSuite } from './support/foreign-suite.ts';

export const mpichFt: ForeignSuite = {
  name: 'MPICH test/mpi/ft',
  source: 'pmodels/mpich, test/mpi/ft, 6a79bf6575',
  file: 'test/suites/mpich-ft.test.ts',
  cases: 47,
  covered: `die abort sendalive isendalive multi_isendalive senddead recvdead isenddead irecvdead barrier gather reduce bcast scatter anysource
    revoke_nofail shrink agree agree_shrink revoke_shrink nbccoll failure_ack`,
  leftOut: [],
};

export const horovodElastic: ForeignSuite = {
  name: 'Horovod elastic_common.py',
  source: 'horovod/horovod, test/integration/elastic_common.py, 2626dc87',
  file: 'test/suites/horovod-elastic.test.ts',
  cases: 11,
  covered: `hosts_added_and_removed single_rank_failure fault_tolerance_without_scaling all_ranks_failure all_hosts_blacklisted
    min_hosts_timeout reset_limit resurrecting_blacklisted_hosts_exponential_backoff`,
  leftOut: [],
};

export const torchft: ForeignSuite = {
  name: 'torchft manager_test.py, manager_integ_test.py',
  source: 'pytorch/torchft, torchft/manager_test.py and manager_integ_test.py, 73dafea',
  file: 'test/suites/torchft.test.ts',
  cases: 27,
  covered: `manager state_dict user_state_dict quorum_happy quorum_heal_sync allreduce_error pg_errored manager_report_error manager_wrap_future
    manager_wrap_future_timeout manager_numerics quorum_happy_timeouts quorum_checkpoint_errors quorum_configure_errors ddp_healthy
    ddp_recovery ddp_recovery_multi_rank quorum_timeout manager_allreduce`,
  leftOut: [
    {
      reason:
        'ranks that take part without their own data while they get the state, or never do: a newcomer takes part once it has the state',
      tests: 'quorum_heal_async_not_enough_participants quorum_heal_async_zero_grad quorum_no_healing',
    },
    { reason: 'ranks in reserve: all that have joined take part', tests: 'quorum_fixed_world_size' },
    { reason: 'a start without the same state on all ranks', tests: 'quorum_skip_init ddp_skip_init_sync' },
    { reason: 'a limit of failures in the ranks: `--max-restarts` is the launcher’s', tests: 'max_retries' },
    {
      reason: 'locks of the state, which is handed on only where the ranks change',
      tests: 'state_dict_lock_allow_disallow state_dict_lock_concurrent_access manager_state_dict_with_lock',
    },
  ],
};

export const torchcommsReconfigure: ForeignSuite = {
  name: 'torchcomms ReconfigureTest.py',
  source: 'meta-pytorch/torchcomms, comms/torchcomms/tests/integration/py/ReconfigureTest.py, 59426ba4b',
  file: 'test/suites/torchcomms-reconfigure.test.ts',
  cases: 23,
  covered: `reconfigure_unsupported_backend reconfigure_basic reconfigure_then_allreduce shrink_basic shrink_exclude_middle_rank
    reconfigure_scale_down_up reconfigure_single_to_all reconfigure_identity reconfigure_late reconfigure_merge_split
    reconfigure_after_abort`,
  leftOut: [
    {
      reason: 'a back end that refuses to be asked beforehand: nothing has to be asked for before a group changes',
      tests: 'enable_reconfigure_unsupported_backend',
    },
  ],
};
