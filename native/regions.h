// Shared-memory regions: anonymous files (memfd) mapped into external ArrayBuffers.
#pragma once
#include <node_api.h>

#include <cstdint>

namespace shoal {

/// Number of mappings that this process has given back: while it stays, every address that was known still is.
uint64_t unmaps();

void export_regions(napi_env env, napi_value exports);

}  // namespace shoal
