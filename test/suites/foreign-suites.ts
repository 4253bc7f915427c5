/** The suites of other projects that have cases here, for their test files and for docs/suites.md. */
import { horovodElastic, mpichFt, torchcommsReconfigure, torchft } from './elastic-suites.ts';
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

export const mxnetLocal: ForeignSuite = {
  name: 'MXNet test_kvstore.py',
  source: 'apache/mxnet, tests/python/unittest/test_kvstore.py and test_kvstore_custom.py, b84609d3fc',
  file: 'test/suites/mxnet-kvstore.test.ts',
  cases: 34,
  covered: `single_kv_pair row_sparse_pull init pull list_kv_pair aggregator updater get_type invalid_pull broadcast_single_kv_pair
    broadcast_list_kv_pair pushpull_single_kv_pair pushpull_list_kv_pair`,
  leftOut: [
    { reason: 'rows of several devices in one push: a push has one set of rows', tests: 'sparse_aggregator' },
    { reason: 'stores that programs register', tests: 'custom_store get_type_device set_optimizer' },
  ],
};

export const mxnetDist: ForeignSuite = {
  name: 'MXNet dist_sync_kvstore.py, dist_async_kvstore.py',
  source: 'apache/mxnet, tests/nightly, b84609d3fc; checks of a test count each',
  file: 'test/suites/mxnet-kvstore.test.ts',
  cases: 31,
  covered: `
    sync_push_pull.default_keys sync_push_pull.row_sparse_keys sync_push_pull.row_sparse_keys_with_zeros sync_push_pull.big_row_sparse_keys
    sync_2bit_compression.residual sync_2bit_compression.ones sync_2bit_compression.pull_before_push sync_2bit_compression.zero
    sync_2bit_compression.random sync_init gluon_trainer_step gluon_trainer_sparse_step`,
  leftOut: [
    {
      reason: 'compression to one bit',
      tests: `sync_1bit_compression.pull_before_push sync_1bit_compression.ones sync_1bit_compression.neg_ones
        sync_1bit_compression.residual sync_1bit_compression.random`,
    },
    {
      reason: "Gluon's trainer, and its choice where weights are updated",
      tests: 'invalid_operations.invalid_gluon_trainer_reset gluon_trainer_type dist_async.gluon_trainer_type',
    },
    { reason: 'a matrix has no storage type: it is pulled whole or by rows', tests: 'invalid_operations.invalid_pull' },
    { reason: 'memory of CUDA devices', tests: 'sync_init.gpu' },
  ],
};

export const psLite: ForeignSuite = {
  name: 'ps-lite tests',
  source: 'dmlc/ps-lite, tests, 15b8adf',
  file: 'test/suites/ps-lite.test.ts',
  cases: 6,
  covered: 'test_connection test_kv_app test_kv_app_multi_workers test_simple_app',
  leftOut: [{ reason: 'a measurement: `npm run bench:kvstore` has ours', tests: 'test_kv_app_benchmark' }],
};

export const safetensorsRust: ForeignSuite = {
  name: 'safetensors, Rust',
  source: 'huggingface/safetensors, safetensors/src/tensor.rs and slice.rs, 24b0b28',
  file: 'test/suites/safetensors.test.ts',
  cases: 36,
  covered: `
    test_indexing test_roundtrip test_serialization test_serialization_fp4 test_serialization_fp4_misaligned test_serialization_fp4_invalid
    test_empty test_serialization_forced_alignement test_gpt2 test_gpt2_tiny test_serialize_to_file_same_path_with_active_mmap
    test_empty_shapes_allowed test_deserialization test_json_attack test_metadata_incomplete_buffer test_header_too_large
    test_header_too_small test_invalid_header_length test_invalid_header_non_utf8 test_invalid_header_not_json
    test_whitespace_padded_header test_whitespace_leading_padded_header test_zero_sized_tensor test_invalid_info
    test_validation_overflow test_invalid_header_size_serialization`,
  leftOut: [
    {
      reason: 'parts of tensors: tensors are loaded whole',
      tests: `test_slicing test_helpers test_fp4_simple test_fp4_misaligned test_dummy test_slice_variety test_slice_variety2
        test_slice_select test_invalid_range`,
    },
    { reason: 'lifetimes of the language', tests: 'test_lifetimes' },
  ],
};

export const safetensorsPython: ForeignSuite = {
  name: 'safetensors, Python',
  source: 'huggingface/safetensors, bindings/python/tests: test_simple, test_pt_comparison, test_pread_backend, 24b0b28',
  file: 'test/suites/safetensors.test.ts',
  cases: 46,
  covered: [
    of(
      'simple',
      `serialization deserialization deserialization_metadata serialization_order_invariant serialization_forces_alignment
        serialization_metadata accept_path file_not_found numpy_example numpy_bool torch_example exception`,
    ),
    of(
      'pt_comparison',
      `serialization odd_dtype complex odd_dtype_fp8_e4m3fn odd_dtype_fp8_e5m2 odd_dtype_fp8_e8m0 odd_dtype_fp8_fnuz odd_dtype_fp4
        zero_sized multiple_zero_sized disjoint_tensors_shared_storage in_memory bogus deserialization_safe deserialization_metadata`,
    ),
    of(
      'pread_backend',
      `safe_open_round_trip get_tensors_round_trip load_file_round_trip load_model truncated_header_is_rejected
        data_offset_overflow_is_rejected numpy_framework`,
    ),
  ].join(' '),
  leftOut: [
    {
      reason: 'memory of devices that are not WebGPU',
      tests: of(
        'pt_comparison',
        `mps_with_device_index gpu gpu_default_device mps mps_fp4 npu hpu anonymous_accelerator deserialization_device
          deserialization_safe_gpu deserialization_safe_gpu_slice deserialization_safe_device_1`,
      ),
    },
    {
      reason: 'parts of tensors: tensors are loaded whole',
      tests: 'simple.torch_slice simple.numpy_slice pt_comparison.deserialization_slice pread_backend.get_slice',
    },
    {
      reason: "tensors as torch has them: sparse, meta, not contiguous, of shared memory; numpy's big-endian ones",
      tests: `simple.pt_sf_save_model_overlapping_storage simple.serialization_no_big_endian
        ${of('pt_comparison', 'meta_tensor sparse cannot_serialize_a_non_contiguous_tensor cannot_serialize_shared')}`,
    },
    {
      reason: 'modules, file handles and backends of the Python package',
      tests: `simple.safetensor_error_module_is_importable simple.get_correctly_dropped pread_backend.default_backend_unchanged
        pread_backend.invalid_backend_string_raises`,
    },
  ],
};

export const zeromqJs: ForeignSuite = {
  name: 'zeromq.js',
  source: 'zeromq/zeromq.js, test/unit without compat, d7c6d2e',
  file: 'test/suites/zeromq.test.ts',
  cases: 122,
  covered: [
    of(
      'context-construction',
      'throw-if-called-as-function throw-with-wrong-options-argument set-option throw-with-invalid-option-value throw-with-unknown-option',
    ),
    of(
      'construction',
      `with-constructor/throw-if-called-as-function throw-with-too-few-arguments throw-with-wrong-options-argument
        throw-with-invalid-context with-constructor/create-socket-with-given-context with-child-constructor/throw-if-called-as-function
        with-child-constructor/create-socket-with-given-context set-option throw-with-invalid-option-value throw-with-unknown-option`,
    ),
    of('bind-unbind', 'resolve bind/throw-error-for-invalid-uri bind/throw-error-for-invalid-protocol'),
    of('connect-disconnect', 'connect/throw-error-for-invalid-uri connect/throw-error-for-invalid-protocol'),
    of(
      'close',
      `close-socket close-socket-and-cancel-send close-socket-and-cancel-receive close-after-successful-bind
        close-after-unsuccessful-bind`,
    ),
    `pair.deliver-messages push-pull.deliver-messages req-rep.deliver-messages router-dealer.deliver-messages
      proxy-router-dealer.proxy-messages curve-send-receive.deliver-single-string-message zap.deliver-message
      zap.report-authentication-error events.receive-connect-events`,
    of(
      'send-receive',
      `when-not-connected/be-writable when-not-connected/not-be-readable honor-send-high-water-mark-and-timeout when-connected/be-writable
        when-connected/not-be-readable be-readable-if-message-is-available deliver-single-string-message deliver-single-buffer-message
        deliver-single-multipart-string-message deliver-single-multipart-buffer-message deliver-multiple-messages
        deliver-typed-array-and-array-buffer-messages poll-simultaneously poll-simultaneously-after-delay honor-receive-timeout
        share-memory-of-large-buffers not-starve-event-loop deliver-message not-be-writable when-closed/not-be-readable not-be-able-to-send
        not-be-able-to-receive gracefully-stop-async-iterator not-mask-other-error-type-in-async-iterator`,
    ),
    of(
      'thread',
      `when-connected-within-thread/deliver-messages when-connected-to-thread/deliver-messages
        when-connected-between-threads/deliver-messages`,
    ),
  ].join(' '),
  leftOut: [
    {
      reason: 'types of sockets beside dealer and router: publishers, streams, drafts',
      tests: `pub-sub.deliver-messages pub-sub.filter-messages xpub-xsub.deliver-messages xpub-xsub.filter-messages
        xpub-xsub.deduplicate-subscriptions-unsubscriptions xpub-xsub.forward-all-subscriptions
        xpub-xsub.forward-all-subscriptions-unsubscriptions stream.send-receive-as-server/deliver-messages
        stream.send-receive-as-client/deliver-messages draft-dgram.deliver-messages draft-radio-dish.deliver-messages
        draft-radio-dish.filter-messages draft-scatter-gather.deliver-messages draft-scatter-gather.deliver-messages-with-immediate
        draft-server-client.deliver-messages draft-server-client.fail-with-unroutable-message zmq-draft.include-functions-and-constructors
        construction.throw-with-draft-type construction.throw-with-wrong-type-argument construction.throw-with-wrong-type-id
        construction.throw-with-invalid-type`,
    },
    {
      reason: 'options of libzmq that are set and read while a socket lives: limits are given once',
      tests: `context-construction.throw-with-readonly-option construction.throw-with-readonly-option
        ${of('context-options', 'set-and-get-bool-socket-option set-and-get-int-socket-option throw-for-readonly-option throw-for-unknown-option')}
        ${of(
          'options',
          `socket-options/set-and-get-bool-socket-option socket-options/set-and-get-int32-socket-option
            socket-options/set-and-get-int64-socket-option socket-options/set-and-get-string-socket-option
            socket-options/set-and-get-string-socket-option-as-buffer set-and-get-string-socket-option-to-undefined
            socket-options/set-and-get-bool-socket-option-2 socket-options/set-and-get-int32-socket-option-2
            socket-options/set-and-get-int64-socket-option-2 set-and-get-uint64-socket-option
            socket-options/set-and-get-string-socket-option-2 socket-options/set-and-get-string-socket-option-as-buffer-2
            set-and-get-string-socket-option-to-null throw-for-readonly-option throw-for-unknown-option get-mechanism
            be-emitted-for-set-after-connect be-emitted-for-set-during-bind be-emitted-for-set-after-bind
            be-emitted-when-setting-large-uint64-socket-option`,
        )}`,
    },
    {
      reason: 'unbind and disconnect: sockets are closed',
      tests: `${of('bind-unbind', 'throw-error-if-not-bound-to-endpoint fail-during-other-bind unbind unbind/throw-error-for-invalid-uri unbind/throw-error-for-invalid-protocol fail-during-other-unbind')}
        ${of('connect-disconnect', 'throw-error-if-not-connected-to-endpoint disconnect/throw-error-for-invalid-uri disconnect/throw-error-for-invalid-protocol')}
        close.close-after-successful-unbind close.close-after-unsuccessful-unbind`,
    },
    {
      reason: 'proxies as objects: a router with addresses of its own passes on the rest',
      tests: `${of('proxy-construction', 'throw-if-called-as-function throw-with-too-few-arguments throw-with-too-many-arguments throw-with-invalid-socket')}
        ${of('proxy-run', 'fail-if-front-end-is-not-bound-or-connected fail-if-front-end-is-not-open fail-if-back-end-is-not-bound-or-connected fail-if-back-end-is-not-open')}
        ${of('proxy-terminate', 'throw-if-not-started-yet throw-if-called-after-termination')}`,
    },
    {
      reason: 'the end of processes and of contexts with sockets left open: programs close their sockets',
      tests: `${of(
        'context-process-exit',
        `with-default-context/occur-when-sockets-are-closed with-default-context/occur-when-sockets-are-not-closed
          with-default-context/not-occur-when-sockets-are-open-and-polling produce-warning-when-messages-are-queued-with-blocky
          produce-warning-when-messages-are-queued-without-blocky not-produce-warning-when-messages-are-queued-for-a-short-time
          with-custom-context/occur-when-sockets-are-closed occur-when-sockets-are-closed-and-context-is-gced
          with-custom-context/occur-when-sockets-are-not-closed with-custom-context/not-occur-when-sockets-are-open-and-polling`,
      )}
        ${of('process-exit', 'occur-cleanly-when-sending-on-unbound-socket not-occur-when-sending-and-blocked-on-unbound-socket occur-cleanly-on-socket-close-when-reading-events not-occur-while-reading-events')}`,
    },
    {
      reason: 'a context of its own for each thread, none by default, and as many arguments as one likes',
      tests: `context-thread.be-shared context-construction.throw-with-too-many-arguments construction.throw-with-too-many-arguments
        construction.with-constructor/create-socket-with-default-context construction.with-child-constructor/create-socket-with-default-context
        close.release-reference-to-context`,
    },
    {
      reason:
        'every socket sends and receives, several calls at once, and a message waits for its receiver; dealers choose their addresses',
      tests: `${of('send-receive', 'fail-sending fail-receiving fail-iterating throw-error-on-concurrent-send throw-error-on-concurrent-receive')}
        req-rep.throw-when-waiting-for-a-response router-dealer.fail-with-unroutable-message-if-mandatory
        push-pull.deliver-messages-with-immediate connect-disconnect.allow-setting-routing-id-on-router`,
    },
    {
      reason: 'events of the socket itself, and ZAP: a router tells of its peers',
      tests: `${of('events', 'receive-events return-same-object receive-bind-events receive-error-events receive-events-with-emitter not-be-able-to-receive be-closed')}
        ${of('zap', 'report-protocol-version-error report-protocol-format-error report-mechanism-mismatch-error')}`,
    },
    {
      reason: 'collection of buffers by the engine, texts made of objects, limits of the system, types of the package',
      tests: `${of('send-receive', 'copy-and-release-small-buffers retain-large-buffers release-buffers release-buffers-after-echo deliver-messages-coercible-to-string')}
        construction.throw-error-on-file-descriptor-limit typings.compile-successfully
        ${of('zmq', 'include-functions-and-constructors return-version-string return-library-capability-booleans return-keypair')}`,
    },
  ],
};

export const tensorflowRendezvous: ForeignSuite = {
  name: 'TensorFlow and DeepRec, rendezvous',
  source: 'tensorflow/tensorflow, rendezvous_test.cc; DeepRec-AI/DeepRec, rpc_rendezvous_mgr_test.cc',
  file: 'test/suites/tensorflow.test.ts',
  cases: 36,
  covered: [
    'Rendezvous.Key',
    of(
      'LocalRendezvous',
      `SendRecv RecvSend PingPong CancelBeforeRecv CancelAfterRecv CancelEmptyQueue RandomSendRecv MultiSends RecvAbort RecvSleepAbort
        AbortThenRecvOrSend`,
    ),
    of('RpcRendezvousMgr', 'LocalSendRecv LocalAbort LocalCancel CancelAfterReceived CleanupAll'),
  ].join(' '),
  leftOut: [
    { reason: 'a name is received once in a step', tests: 'LocalRendezvous.CancelMultiple' },
    {
      reason: "contexts of TensorFlow's devices, and DeepRec's sends that wait for room",
      tests: 'LocalRendezvous.TransferDummyDeviceContext RpcRendezvousMgr.TransferDummyDeviceContext RpcRendezvousMgr.FlowControlSend',
    },
  ],
};

export const tensorflowPartition: ForeignSuite = {
  name: 'DeepRec, partitioned graphs',
  source: "DeepRec-AI/DeepRec, graph_partition_test.cc: TensorFlow's with FuseRecv, e935e4cee4",
  file: 'test/suites/tensorflow.test.ts',
  cases: 14,
  covered: [
    of(
      'GraphPartitionTest',
      `SingleDevice CrossDeviceData CrossDeviceControl CrossDeviceData_MultiUse CrossDeviceControl_MultiUse CrossDevice_DataControl
        CrossDeviceLoopSimple CrossDeviceLoopSimple1 CrossDeviceLoopFull PartitionIncompleteGraph SetIncarnation`,
    ),
    of('FuseRecvTest', 'FuseRecvNormal FuseRecvNormal2 FuseRecvRefType'),
  ].join(' '),
  leftOut: [
    { reason: 'functions travel with the session, not with each partition', tests: 'GraphPartitionTest.Functions' },
    {
      reason: 'an order of nodes by estimated times',
      tests: of('TopologicalSortNodesWithTimePriority', 'NoDependencies Dependencies WhileLoop'),
    },
  ],
};

/** All suites, in the order of docs/suites.md. */
export const foreignSuites: readonly ForeignSuite[] = [
  mpichColl,
  torchStore,
  torchGloo,
  torchObjects,
  horovodTorch,
  mxnetLocal,
  mxnetDist,
  psLite,
  safetensorsRust,
  safetensorsPython,
  zeromqJs,
  tensorflowRendezvous,
  tensorflowPartition,
  mpichFt,
  horovodElastic,
  torchft,
  torchcommsReconfigure,
];
