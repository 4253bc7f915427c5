# Compiled by scripts/compile-native.mjs. Not in the package's root: package managers that find one there want a compiler at installation.
{
  'variables': {
    # 1: what is made runs on other machines than this one, see glibc_floor.cc.
    'portable%': 0,
  },
  'targets': [
    {
      'target_name': 'shoal',
      'sources': [
        'addon.cc',
        'lives.cc',
        'records.cc',
        'regions.cc',
        'repetition.cc',
        'sockets.cc',
        'kernels.cc',
        'kernels_generic.cc',
        'kernels_avx2.cc',
        'kernels_avx512.cc',
        'optimizers.cc',
        'optimizers_generic.cc',
        'optimizers_avx2.cc',
        'wire.cc',
        'wire_napi.cc',
        'wire_watch.cc',
        'step_machine.cc',
        '../src/fabric/providers/libfabric/native/ofi.cc',
        '../src/fabric/providers/libfabric/native/ofi_load.cc',
        '../src/mpi/native/mpi.cc',
        '../src/mpi/native/mpi_load.cc',
        '../src/mpi/native/mpi_runtime.cc',
        '../src/mpi/native/mpi_tasks.cc',
      ],
      'include_dirs': ['.'],
      'defines': ['NAPI_VERSION=8', 'SHOAL_INTERFACE="<!(node ../scripts/native-interface.mjs)"'],
      # The order of every rounding is part of the contract: no contraction, no fast-math.
      # Element views of one buffer may differ in type (in-place conversion), hence no strict aliasing.
      'cflags': ['-O3', '-ffp-contract=off', '-fno-trapping-math', '-fno-math-errno', '-fno-strict-aliasing', '-fvisibility=hidden', '-Wall', '-Wextra'],
      'cflags!': ['-O2', '-fno-omit-frame-pointer'],
      'cflags_cc': ['-std=c++17', '-fno-exceptions', '-fno-rtti'],
      'cflags_cc!': ['-std=gnu++17', '-std=gnu++20'],
      'conditions': [
        ['portable==1', {
          'sources': ['glibc_floor.cc'],
          'ldflags': [
            '-static-libstdc++', '-static-libgcc', '-Wl,--exclude-libs,ALL',
            '-Wl,--wrap=__libc_single_threaded', '-Wl,--wrap=__pthread_key_create', '-Wl,--wrap=_dl_find_object', '-Wl,--wrap=arc4random', '-Wl,--wrap=dladdr', '-Wl,--wrap=dlerror', '-Wl,--wrap=dlopen',
            '-Wl,--wrap=dlsym', '-Wl,--wrap=dlvsym', '-Wl,--wrap=fstat64', '-Wl,--wrap=pthread_cond_clockwait', '-Wl,--wrap=pthread_create',
            '-Wl,--wrap=pthread_detach', '-Wl,--wrap=pthread_join', '-Wl,--wrap=pthread_key_create', '-Wl,--wrap=pthread_key_delete', '-Wl,--wrap=pthread_once',
            '-Wl,--wrap=pthread_setspecific', '-Wl,--wrap=pthread_getspecific',
          ],
        }],
      ],
    },
    {
      'target_name': 'shoal-rank',
      'type': 'executable',
      'sources': ['rank_start.cc'],
      'cflags': ['-Wall', '-Wextra'],
      'conditions': [
        ['portable==1', {
          'sources': ['glibc_floor.cc'],
          'defines': ['SHOAL_FLOOR_OF_PROGRAM'],
          'ldflags': ['-static-libstdc++', '-static-libgcc', '-Wl,--wrap=__libc_start_main'],
        }],
      ],
    },
  ],
}
