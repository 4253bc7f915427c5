// The addon's interface to JavaScript. Typed in src/memory/native.ts, the only file that loads it.
//
// Stateless but for objects behind handles, so that any number of threads may load it.
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels.h"
#include "lives.h"
#include "napi_args.h"
#include "optimizers.h"
#include "regions.h"
#include "repetition.h"
#include "small_buffer.h"
#include "sockets.h"
#include "step_machine.h"
#include "wire.h"
// The optional carriers.
#include "../src/fabric/providers/libfabric/native/ofi.h"
#include "../src/mpi/native/mpi.h"

namespace shoal {
namespace {

/// Views of a JavaScript array, all at least as long as the first.
bool get_views(napi_env env, napi_value array, uint32_t count, uint8_t** out, size_t& bytes) {
  for (uint32_t k = 0; k < count; k++) {
    napi_value element;
    Bytes view;
    if (napi_get_element(env, array, k, &element) != napi_ok || !get(env, element, view)) return false;
    if (bytes == SIZE_MAX) bytes = view.size;
    if (view.size != bytes) return false;
    out[k] = view.data;
  }
  return true;
}

// The kernel functions exist once per instruction set; `data` is the table of loops.

const KernelTable& table_of(const void* data) { return *static_cast<const KernelTable*>(data); }

/// reduce(dtype, op, targets: Uint8Array[], sources: Uint8Array[], tree: number[], divisor: number | NaN)
napi_value reduce(napi_env env, napi_callback_info info) {
  napi_value values[6];
  size_t dtype, op, depth, bytes = SIZE_MAX;
  uint32_t target_count, source_count, tree_count;
  double divisor;
  void* data;
  if (!arguments(env, info, values, &data) || !get_index(env, values[0], kDTypes, dtype) || !get_index(env, values[1], kOps, op) ||
      napi_get_array_length(env, values[2], &target_count) != napi_ok || napi_get_array_length(env, values[3], &source_count) != napi_ok ||
      napi_get_array_length(env, values[4], &tree_count) != napi_ok || !get(env, values[5], divisor) || target_count == 0) {
    return fail_arguments(env);
  }
  SmallBuffer<uint8_t*, 16> targets(target_count), sources(source_count);
  SmallBuffer<int32_t, 64> tree(tree_count);
  if (!get_views(env, values[2], target_count, targets.data(), bytes) || !get_views(env, values[3], source_count, sources.data(), bytes)) {
    return fail_arguments(env);
  }
  for (uint32_t k = 0; k < tree_count; k++) {
    napi_value node;
    if (napi_get_element(env, values[4], k, &node) != napi_ok || !get_whole(env, node, -1, INT32_MAX, tree[k])) return fail_arguments(env);
  }
  const ReduceLoop loop = table_of(data).reduce[dtype][op];
  const Division division = Division::of(divisor);
  if (loop == nullptr || (division.kind != Division::kNone && !is_float(dtype)) || !check_tree(tree.data(), tree_count, source_count, depth)) return fail_arguments(env);
  const size_t count = bytes / kElementBytes[dtype];
  loop({count, division, targets.data(), target_count, sources.data(), source_count, tree.data(), tree_count, depth});
  return nullptr;
}

/// scale(dtype, target, source, factor)
napi_value scale(napi_env env, napi_callback_info info) {
  napi_value values[4];
  size_t dtype;
  Bytes target, source;
  double factor;
  void* data;
  if (!arguments(env, info, values, &data) || !get_index(env, values[0], kDTypes, dtype) || !is_float(dtype) || !get(env, values[1], target) ||
      !get(env, values[2], source) || !get(env, values[3], factor) || target.size != source.size) {
    return fail_arguments(env);
  }
  table_of(data).scale[dtype](target.data, source.data, target.size / kElementBytes[dtype], factor);
  return nullptr;
}

/// convert(targetDtype, target, sourceDtype, source)
napi_value convert(napi_env env, napi_callback_info info) {
  napi_value values[4];
  size_t target_dtype, source_dtype;
  Bytes target, source;
  void* data;
  if (!arguments(env, info, values, &data) || !get_index(env, values[0], kDTypes, target_dtype) || !get(env, values[1], target) ||
      !get_index(env, values[2], kDTypes, source_dtype) || !get(env, values[3], source) ||
      target.size / kElementBytes[target_dtype] != source.size / kElementBytes[source_dtype]) {
    return fail_arguments(env);
  }
  convert_loop(table_of(data), target_dtype, source_dtype)(target.data, source.data, target.size / kElementBytes[target_dtype]);
  return nullptr;
}

/// copy(target, source)
napi_value copy(napi_env env, napi_callback_info info) {
  napi_value values[2];
  Bytes target, source;
  if (!arguments(env, info, values) || !get(env, values[0], target) || !get(env, values[1], source) || target.size != source.size) {
    return fail_arguments(env);
  }
  std::memmove(target.data, source.data, target.size);
  return nullptr;
}

/// createSegments(count): a handle
napi_value create_segments(napi_env env, napi_callback_info info) {
  napi_value values[1], handle;
  size_t count;
  if (!arguments(env, info, values) || !get_index(env, values[0], 1 << 24, count)) return fail_arguments(env);
  auto* segments = new Segments(count);
  const auto finalize = [](napi_env, void* data, void*) { delete static_cast<Segments*>(data); };
  if (napi_create_external(env, segments, finalize, nullptr, &handle) != napi_ok) {
    delete segments;
    return fail(env, "EINVAL", "napi_create_external failed");
  }
  return handle;
}

/// setSegment(handle, index, view). The caller keeps the view alive.
napi_value set_segment(napi_env env, napi_callback_info info) {
  napi_value values[3];
  Segments* segments;
  size_t index;
  Bytes view;
  if (!arguments(env, info, values) || !get_external(env, values[0], segments) || !get_index(env, values[1], segments->all.size(), index) ||
      !get(env, values[2], view)) {
    return fail_arguments(env);
  }
  segments->all[index] = {view.data, view.size};
  segments->version++;
  return nullptr;
}

/// bindRegisters(words): a handle on a Float64Array. The caller keeps the array alive and attached.
napi_value bind_registers(napi_env env, napi_callback_info info) {
  napi_value values[1], handle;
  Doubles words;
  if (!arguments(env, info, values) || !get(env, values[0], words) || words.size < kRegisterWords + 1) return fail_arguments(env);
  auto* registers = new Registers{words.data, words.size};
  const auto finalize = [](napi_env, void* data, void*) { delete static_cast<Registers*>(data); };
  if (napi_create_external(env, registers, finalize, nullptr, &handle) != napi_ok) {
    delete registers;
    return fail(env, "EINVAL", "napi_create_external failed");
  }
  return handle;
}

/// createProgram(code, segments): a handle. The caller keeps both alive, and the code attached.
napi_value create_program(napi_env env, napi_callback_info info) {
  napi_value values[2], handle;
  Doubles code;
  Segments* segments;
  if (!arguments(env, info, values) || !get(env, values[0], code) || !get_external(env, values[1], segments)) return fail_arguments(env);
  auto* program = new Program{code.data, code.size, segments};
  const auto finalize = [](napi_env, void* data, void*) { delete static_cast<Program*>(data); };
  if (napi_create_external(env, program, finalize, nullptr, &handle) != napi_ok) {
    delete program;
    return fail(env, "EINVAL", "napi_create_external failed");
  }
  return handle;
}

/// runSteps(program, registers): status code. Handles, because reading a typed array costs 30 ns.
napi_value run(napi_env env, napi_callback_info info) {
  napi_value values[2], result;
  Program* program;
  Registers* registers;
  if (!arguments(env, info, values) || !get_external(env, values[0], program) || !get_external(env, values[1], registers)) return fail_arguments(env);
  const Status status = run_steps(*program, *registers);
  return napi_create_int32(env, static_cast<int32_t>(status), &result) == napi_ok ? result : nullptr;
}

void export_kernels(napi_env env, napi_value object, const KernelTable& table) {
  set_text(env, object, "isa", table.isa);
  set_function(env, object, "reduce", reduce, &table);
  set_function(env, object, "scale", scale, &table);
  set_function(env, object, "convert", convert, &table);
}

napi_value init(napi_env env, napi_value exports) {
  // Interface version of these sources (scripts/native-interface.mjs); the loader refuses a binary built from others.
  set_text(env, exports, "version", SHOAL_INTERFACE);
  export_kernels(env, exports, kernels());
  napi_value others;
  const KernelTables& all = all_kernels();
  if (napi_create_array_with_length(env, all.count - 1, &others) == napi_ok) {
    for (size_t k = 1; k < all.count; k++) {
      napi_value loops;
      if (napi_create_object(env, &loops) != napi_ok) return nullptr;
      export_kernels(env, loops, *all.tables[k]);
      expect(env, napi_set_element(env, others, static_cast<uint32_t>(k - 1), loops), "others");
    }
    set_property(env, exports, "others", others);
  }
  export_parameters(env, exports);
  export_regions(env, exports);
  export_sockets(env, exports);
  export_mpi(env, exports);
  export_ofi(env, exports);
  export_records(env, exports);
  export_wires(env, exports);
  export_watches(env, exports);
  export_lives(env, exports);
  export_repetition(env, exports);
  set_function(env, exports, "copy", copy);
  set_function(env, exports, "createSegments", create_segments);
  set_function(env, exports, "setSegment", set_segment);
  set_function(env, exports, "bindRegisters", bind_registers);
  set_function(env, exports, "createProgram", create_program);
  set_function(env, exports, "runSteps", run);
  return exports;
}

}  // namespace
}  // namespace shoal

NAPI_MODULE_INIT() { return shoal::init(env, exports); }
