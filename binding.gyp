{
  'targets': [
    {
      'target_name': 'shoal',
      'sources': [
        'native/addon.cc',
        'native/regions.cc',
        'native/sockets.cc',
        'native/kernels.cc',
        'native/kernels_generic.cc',
        'native/kernels_avx2.cc',
        'native/kernels_avx512.cc',
        'native/optimizers.cc',
        'native/optimizers_generic.cc',
        'native/optimizers_avx2.cc',
        'native/wire.cc',
        'native/wire_napi.cc',
        'native/wire_watch.cc',
        'native/step_machine.cc',
        'native/ofi.cc',
        'native/ofi_load.cc',
        'native/mpi.cc',
        'native/mpi_load.cc',
        'native/mpi_runtime.cc',
        'native/mpi_tasks.cc',
      ],
      'defines': ['NAPI_VERSION=8', 'SHOAL_INTERFACE="<!(node scripts/native-interface.mjs)"'],
      # The order of every rounding is part of the contract: no contraction, no fast-math.
      # Element views of one buffer may differ in type (in-place conversion), hence no strict aliasing.
      'cflags': ['-O3', '-ffp-contract=off', '-fno-trapping-math', '-fno-math-errno', '-fno-strict-aliasing', '-fvisibility=hidden', '-Wall', '-Wextra'],
      'cflags!': ['-O2', '-fno-omit-frame-pointer'],
      'cflags_cc': ['-std=c++17', '-fno-exceptions', '-fno-rtti'],
      'cflags_cc!': ['-std=gnu++17', '-std=gnu++20'],
    },
    {
      'target_name': 'shoal-rank',
      'type': 'executable',
      'sources': ['native/rank_start.cc'],
      'cflags': ['-Wall', '-Wextra'],
    },
  ],
}
