// Options of TCP sockets that Node does not offer.
#pragma once
#include <node_api.h>

namespace shoal {

void export_sockets(napi_env env, napi_value exports);

}  // namespace shoal
