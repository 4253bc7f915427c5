// Programs that run again and again, each time by one call without arguments: src/memory/step-machine.ts, `Repetition`.
#pragma once
#include <node_api.h>

namespace shoal {

void export_repetition(napi_env env, napi_value exports);

}  // namespace shoal
