// Sockets that carry the lane's announcements between hosts; see lane_wire.cc.
#pragma once
#include <node_api.h>

namespace shoal {

void export_wires(napi_env env, napi_value exports);

}  // namespace shoal
