// The loops for every CPU of the target architecture.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "float16.h"
#include "kernels.h"
#include "small_buffer.h"

#define SHOAL_ISA generic
#define SHOAL_ISA_NAME "generic"
#define SHOAL_TABLE kGenericKernels
#include "kernels_loops.h"
