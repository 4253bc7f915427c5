// libfabric for JavaScript. Typed in src/memory/native-ofi.ts.
#pragma once
#include <node_api.h>

namespace shoal {

void export_ofi(napi_env env, napi_value exports);

}  // namespace shoal
