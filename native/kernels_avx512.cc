// The loops for x86-64 with AVX-512, in vectors of a whole cache line. Everything that other files share is included before the target changes,
// so that no shared inline function is compiled with instructions an older CPU lacks.
#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "kernels.h"
#include "small_buffer.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,f16c,prefer-vector-width=512")
#endif

#include "float16.h"

#define SHOAL_F16C 1
#define SHOAL_ISA avx512
#define SHOAL_ISA_NAME "avx512"
#define SHOAL_TABLE kAvx512Kernels
#include "kernels_loops.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
