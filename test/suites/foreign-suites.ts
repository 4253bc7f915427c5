/** The suites of other projects that have cases here, for their test files and for docs/suites.md. */
import { namesOf, type ForeignSuite } from './support/foreign-suite.ts';

export const mpichColl: ForeignSuite = {
  name: 'MPICH test/mpi/coll',
  source: 'pmodels/mpich, test/mpi/coll, 6a79bf6575',
  file: 'test/suites/mpich-coll.test.ts',
  cases: 480,
  covered: `
    allgather2 allgather3 allgather_struct allgatherv2 allgatherv3 allgatherv4 allred allred2 allred3 allred4 allred5 allred6
    allred_float allredmany alltoall1 alltoallv alltoallv0 alltoallw1 alltoallw2 alltoallw_zeros bcast bcasttest bcastzerotype coll2
    coll4 coll5 coll6 coll7 coll8 coll9 coll10 coll12 coll13 coll_large exscan exscan2 gather gather2 gatherv iallred ibarrier longuser
    nonblocking nonblocking2 nonblocking3 op_coll opband opbor opbxor opland oplor oplxor opmax opmaxloc opmin opminloc opprod opsum
    p_allgather p_allgatherv p_allred p_alltoall p_alltoallv p_barrier p_bcast p_bcast2 p_exscan p_gather p_gatherv p_red
    p_red_scat_block p_redscat p_scan p_scatter p_scatterv red3 red4 red_scat_block red_scat_block2 redscat redscat2 redscat3
    redscatblk3 reduce scantst scatter2 scatter3 scattern scatterv uop_equal uoplong`,
  leftOut: [
    {
      reason: 'collectives between two groups: a group has its own ranks only',
      tests: `icallgather icallgatherv icallreduce icalltoall icalltoallv icalltoallw icbarrier icbcast icgather icgatherv icreduce
        icscatter icscatterv redscatinter redscatbkinter`,
    },
    {
      reason: 'collectives of neighbours in a process topology: programs send and receive',
      tests: `neighb_allgather neighb_allgatherv neighb_alltoall neighb_alltoallv neighb_alltoallw neighb_alltoallw2
        ring_neighbor_alltoall p_neighb_allgather p_neighb_allgatherv p_neighb_alltoall p_neighb_alltoallv p_neighb_alltoallw`,
    },
    { reason: 'memory of CUDA devices', tests: 'allgather_gpu allgatherv_gpu alltoall_gpu bcast_gpu' },
    { reason: 'derived datatypes: elements of a call lie side by side', tests: 'allred_derived p_alltoallw' },
    {
      reason: 'questions to objects of MPI (operators, requests that were never started) that have no counterpart',
      tests: 'op_commutative reduce_local p_inactive',
    },
    { reason: 'ranks may start calls in different orders: refused with `mismatch`', tests: 'p_order' },
    { reason: 'needs 20 GB of memory', tests: 'gather_big' },
  ],
};

/** The tests of torch's `StoreTestBase`, which its classes of stores have. */
const storeTests =
  'set_get_check compare_set simple_wait append queues queues_nonblocking queues_bidirectional queues_timeout multi_set multi_get clone';

/** Names of tests, each with its class. */
function of(className: string, tests: string): string {
  return namesOf(tests)
    .map((test) => `${className}.${test}`)
    .join(' ');
}

export const torchStore: ForeignSuite = {
  name: 'torch test_store.py',
  source: 'pytorch/pytorch, test/distributed/test_store.py',
  file: 'test/suites/torch-store.test.ts',
  cases: 83,
  covered: [
    ...['FileStoreTest', 'PrefixFileStoreTest', 'PrefixTCPStoreTest'].map((name) => of(name, storeTests)),
    of('HashStoreTest', storeTests.replace(' clone', '')),
    of(
      'TCPStoreTest',
      `${storeTests} address_already_in_use numkeys_delkeys multi_worker_with_fixed_world_size multi_worker_with_nonfixed_world_size
        store_timeout_on_missing_clients world_size_0_raises agent_store`,
    ),
    'RendezvousTest.unknown_handler RendezvousEnvTest.nominal',
    of('RendezvousFileTest', 'common_errors nominal'),
    of('RendezvousTCPTest', 'common_errors dns_timeout nominal tcp_store_timeout_set tcp_store_timeout_doest_break_client'),
    of('TestPythonStore', 'append_roundtrip multi_get_roundtrip multi_set_roundtrip'),
    of('TestMultiThreadedWait', 'wait_hash_store wait_file_store wait_prefix_file_store wait_tcp_store'),
    'TimeoutTest.interrupt_doesnt_break_wait',
  ].join(' '),
  leftOut: [
    {
      reason: 'a second implementation of the TCP store (libuv), and the choice between the two: Shoal has one',
      tests: `LibUvTCPStoreTest RendezvousTCPTest.tcp_store_url_with_libuv TestMultiThreadedWait.wait_tcp_store_uv
        InitPgWithNonUvStore.with_url_param InitPgWithNonUvStore.with_env_var`,
    },
    {
      reason: 'stores that programs write themselves: a program is given stores',
      tests: `PythonStoreTest.set_get ${of('TestPythonStore', 'optional_methods_fail has_extended_api_passthrough has_extended_api_roundtrip extended_methods_fallbacks')}`,
    },
    {
      reason: 'objects of torch that have no counterpart: RPC, texts of objects, file descriptors, wrapped stores, its wire format',
      tests: `FileStoreTest.init_pg_and_rpc_with_same_file PrefixStoreTest.get_underlying_store PrefixTCPStoreTest.underlying_non_prefix_store
        ${of('TCPStoreTest', 'multitenancy repr init_pg_and_rpc_with_same_socket take_over_listen_socket')} TestClientProtocol.client_connect`,
    },
    { reason: 'a hash store has one client; its parts are `prefix`', tests: 'HashStoreTest.clone' },
    { reason: 'the folder of a file store is removed by whoever made it', tests: 'FileStoreTest.refcount' },
    { reason: 'ranks and sizes are options, never part of a URL', tests: 'RendezvousTest.url_with_node_params' },
  ],
};

export const torchGloo: ForeignSuite = {
  name: 'torch test_c10d_gloo.py',
  source: 'pytorch/pytorch, test/distributed/test_c10d_gloo.py with test_c10d_common.py, 005a6a0b9e',
  file: 'test/suites/torch-c10d.test.ts',
  cases: 148,
  covered: `
    empty_tensors broadcast_checks broadcast_basics broadcast_stress allreduce_checks allreduce_basics allreduce_stress
    allreduce_coalesced_checks allreduce_coalesced_basics allreduce_coalesced_stress allreduce_coalesced_async
    allgather_into_tensor_coalesced reduce_scatter reduce_scatter_tensor reduce_scatter_tensor_coalesced scatter_checks scatter_basics
    scatter_stress set_gloo_pg_timeout gather_checks gather_basics gather_noncontiguous_input gather_stress allgather_checks
    allgather_basics allgather_noncontiguous_input allgather_stress allgather_coalesced_checks allgather_coalesced_async reduce_checks
    reduce_basics reduce_stress send_recv_all_to_all barrier_implies_wait default_store_timeout_gloo gloo_backend_cpu_module
    gloo_backend_cpu_module_grad_is_view global_local_unused_params_grad find_unused_parameters_when_unused_parameters_empty
    ignored_output ignored_output_with_unused_parameters ddp_comm_hook_future_passing_cpu ddp_invalid_comm_hook_init
    ddp_invalid_comm_hook_return_type ddp_comm_hook_register_just_once single_dtype_single_bucket multi_dtype_single_bucket
    multi_dtype_multi_bucket forward_backward forward_backward_unused_parameters forward_backward_optimizer
    broadcast_coalesced_gloo_cpu gloo_warn_not_in_group gloo_rank_membership tensor_dtype_mismatch bool_tensors collectives
    allreduce_coalesced all_to_all_single allgather_coalesced monitored_barrier new_group_local_sync new_group_local_sync_sanity_check
    new_group_local_sync_duplicate_pg`,
  leftOut: [
    {
      reason: 'memory of CUDA devices',
      tests: `broadcast_basics_cuda broadcast_stress_cuda allreduce_basics_cuda allreduce_stress_cuda allreduce_coalesced_checks_cuda
        sparse_allreduce_basics_cuda sparse_allreduce_cuda_dispatched scatter_basics_cuda scatter_stress_cuda gather_basics_cuda
        gather_stress_cuda allgather_basics_cuda allgather_stress_cuda reduce_basics_cuda reduce_stress_cuda
        gloo_backend_1gpu_module_device_ids_integer_list gloo_backend_1gpu_module_device_ids_torch_device_list gloo_backend_2gpu_module
        gloo_backend_4gpu_module global_local_unused_params_grad_with_grad_is_view global_local_unused_params_grad_with_static_graph
        ignored_sharded_tensor save_load_checkpoint ddp_comm_hook_future_passing_gpu_gloo broadcast_coalesced_gloo_cuda`,
    },
    {
      reason: 'sparse tensors: rows are pushed and pulled through a store',
      tests: `sparse_allreduce_checks sparse_allreduce_basics sparse_gradients sparse_gradients_grad_is_view
        ddp_comm_hook_sparse_gradients`,
    },
    {
      reason:
        'objects of torch or gloo that have no counterpart: devices of the network, logging, inference mode, sequence numbers, complex numbers',
      tests: `multi_device_constructor allgather_inference_mode logging_init sequence_num_set_default_pg_gloo sequence_num_set_gloo_new_group
        sequence_num_incremented_gloo_default sequence_num_incremented_gloo_subgroup tensor_dtype_complex`,
    },
    { reason: 'the same tests again, over connections that gloo makes late', tests: 'ProcessGroupGlooLazyInitTest' },
  ],
};

export const torchObjects: ForeignSuite = {
  name: 'torch test_c10d_object_collectives.py',
  source: 'pytorch/pytorch, test/distributed/test_c10d_object_collectives.py, 107beeaf28',
  file: 'test/suites/torch-c10d.test.ts',
  cases: 8,
  covered: `all_gather_object gather_object broadcast_object_list scatter_object_list subpg_scatter_object subpg_all_gather_object
    subpg_gather_object subpg_broadcast_object`,
  leftOut: [],
};

export const horovodTorch: ForeignSuite = {
  name: 'Horovod test_torch.py',
  source: 'horovod/horovod, test/parallel/test_torch.py, 2626dc87',
  file: 'test/suites/horovod-torch.test.ts',
  cases: 246,
  covered: `
    horovod_reinit horovod_is_initialized horovod_rank horovod_size horovod_allreduce horovod_allreduce_average horovod_allreduce_min
    horovod_allreduce_max horovod_allreduce_product horovod_allreduce_inplace horovod_allreduce_async_fused horovod_allreduce_prescale
    horovod_allreduce_postscale horovod_allreduce_process_sets horovod_allreduce_error horovod_allreduce_type_error
    horovod_grouped_allreduce horovod_grouped_allreduce_average horovod_grouped_allreduce_inplace horovod_grouped_allreduce_process_sets
    horovod_allgather horovod_allgather_variable_size horovod_allgather_async_fused horovod_allgather_process_sets
    horovod_allgather_error horovod_allgather_type_error horovod_grouped_allgather horovod_grouped_allgather_process_sets
    horovod_broadcast horovod_broadcast_inplace horovod_broadcast_process_sets horovod_broadcast_error horovod_broadcast_type_error
    horovod_broadcast_rank_error horovod_alltoall horovod_alltoall_equal_split horovod_alltoall_process_sets horovod_alltoall_type_error
    horovod_alltoall_equal_split_length_error horovod_alltoall_splits_error horovod_alltoall_splits_type_error horovod_alltoall_rank_error
    broadcast_state broadcast_state_options broadcast_object broadcast_object_process_sets allgather_object compression_fp16
    duplicate_names gradient_clipping horovod_join_allreduce async_sparse_allreduce async_sparse_allreduce_process_sets
    process_set_barrier_op global_barrier_op barrier_with_multiple_collectives horovod_reducescatter horovod_reducescatter_average
    horovod_reducescatter_prescale horovod_reducescatter_postscale horovod_reducescatter_scalar_error horovod_reducescatter_async_fused
    horovod_reducescatter_error horovod_reducescatter_type_error horovod_reducescatter_process_sets horovod_grouped_reducescatter
    horovod_grouped_reducescatter_average horovod_grouped_reducescatter_prescale horovod_grouped_reducescatter_postscale
    horovod_grouped_reducescatter_scalar_error horovod_grouped_reducescatter_process_sets`,
  leftOut: [
    {
      reason: 'memory of CUDA devices',
      tests: `gpu_required horovod_allreduce_multi_gpu horovod_allreduce_cpu_gpu_error horovod_grouped_allreduce_cpu_gpu_error
        horovod_alltoall_splits_on_gpu broadcast_state_gpu model_parallelism`,
    },
    {
      reason: 'gradients of collectives: they are calls, not operations of a framework',
      tests: `horovod_allreduce_grad horovod_allreduce_grad_average horovod_allreduce_grad_process_sets horovod_grouped_allreduce_grad
        horovod_grouped_allreduce_grad_average horovod_grouped_allreduce_grad_process_sets horovod_allgather_grad
        horovod_allgather_grad_process_sets horovod_grouped_allgather_grad horovod_broadcast_grad horovod_broadcast_grad_process_sets
        horovod_alltoall_grad horovod_alltoall_equal_split_grad horovod_alltoall_grad_process_sets horovod_reducescatter_grad
        horovod_reducescatter_grad_average horovod_reducescatter_grad_process_sets horovod_grouped_reducescatter_grad`,
    },
    {
      reason: "torch's optimisers and layers as Horovod wraps them",
      tests: `broadcast_state_no_grad force_allreduce dynamic_requires_grad synchronize_step_warning no_named_parameters
        missing_named_parameters optimizer_no_named_parameters optimizer_process_sets horovod_sync_batch_norm sparse_embeddings`,
    },
    {
      reason: 'calls of one name in flight are allowed: they are told apart by their order',
      tests: `horovod_allreduce_duplicate_name_error horovod_allgather_duplicate_name_error horovod_broadcast_duplicate_name_error
        horovod_reducescatter_duplicate_name_error`,
    },
    { reason: 'Adasum', tests: 'delta_optimizer horovod_reducescatter_adasum' },
    {
      reason: 'a rank that has joined takes part in other calls than all-reduce: `join` runs the collectives of its joinables',
      tests: 'horovod_join_allgather horovod_join_broadcast',
    },
    { reason: 'a timeline is asked for before the job starts', tests: 'timeline_api' },
  ],
};

/** All suites, in the order of docs/suites.md. */
export const foreignSuites: readonly ForeignSuite[] = [mpichColl, torchStore, torchGloo, torchObjects, horovodTorch];
