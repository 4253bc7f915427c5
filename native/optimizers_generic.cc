// The loops for every CPU of the target architecture.
#include <algorithm>
#include <cstring>

#include "float16.h"
#include "optimizers.h"

#define SHOAL_ISA generic
#define SHOAL_PARAMETERS kGenericParameters
#include "optimizers_loops.h"
