// The loops for x86-64 with AVX2 and F16C. Everything that other files share is included before the target changes, so that no
// shared inline function is compiled with instructions an older CPU lacks.
#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "optimizers.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#endif

#include "float16.h"

#define SHOAL_F16C 1
#define SHOAL_ISA avx2
#define SHOAL_PARAMETERS kAvx2Parameters
#include "optimizers_loops.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
