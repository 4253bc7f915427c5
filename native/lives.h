// Sees that other processes of this host have ended.
#pragma once
#include <node_api.h>

namespace shoal {

void export_lives(napi_env env, napi_value exports);

}  // namespace shoal
