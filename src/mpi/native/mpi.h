// Open MPI for JavaScript. Typed in src/memory/native-mpi.ts.
#pragma once
#include <node_api.h>

namespace shoal {

void export_mpi(napi_env env, napi_value exports);

}  // namespace shoal
