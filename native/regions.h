// Shared-memory regions: anonymous files (memfd) mapped into external ArrayBuffers.
#pragma once
#include <node_api.h>

namespace shoal {

void export_regions(napi_env env, napi_value exports);

}  // namespace shoal
