// The parameter kernels' interface to JavaScript, and the choice of their instruction set.
#include "optimizers.h"

#include <cmath>

#include "napi_args.h"

namespace shoal {
namespace {

const ParameterTable& best_parameters() {
#if defined(__x86_64__)
  static const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  if (avx2) return kAvx2Parameters;
#endif
  return kGenericParameters;
}

const ParameterTable& table_of(const void* data) { return *static_cast<const ParameterTable*>(data); }

/// A Float32Array or a Float64Array.
struct Reals {
  void* data;
  size_t count;
  bool single;
};

bool get_reals(napi_env env, napi_value value, Reals& out) {
  napi_typedarray_type type;
  if (napi_get_typedarray_info(env, value, &type, &out.count, &out.data, nullptr, nullptr) != napi_ok) return false;
  out.single = type == napi_float32_array;
  return out.single || type == napi_float64_array;
}

bool get_singles(napi_env env, napi_value value, Reals& out) { return get_reals(env, value, out) && out.single; }

/// update(rule, value, gradient, states[], parameters: Float64Array)
napi_value update(napi_env env, napi_callback_info info) {
  napi_value values[5];
  size_t rule;
  Reals value, gradient;
  uint32_t state_count;
  Doubles parameters;
  void* data;
  if (!arguments(env, info, values, &data) || !get_index(env, values[0], kUpdateRules, rule) ||
      !get_reals(env, values[1], value) || !get_reals(env, values[2], gradient) || !get(env, values[4], parameters) ||
      napi_get_array_length(env, values[3], &state_count) != napi_ok) {
    return fail_arguments(env);
  }
  if (gradient.count != value.count || gradient.single != value.single || state_count != kUpdateStates[rule] ||
      parameters.size != kUpdateParameters[rule]) {
    return fail_arguments(env);
  }
  UpdateCall call = {value.count, value.data, gradient.data, {}, parameters.data};
  for (uint32_t k = 0; k < state_count; k++) {
    napi_value element;
    Reals state;
    if (napi_get_element(env, values[3], k, &element) != napi_ok || !get_reals(env, element, state) || state.count != value.count ||
        state.single != value.single) {
      return fail_arguments(env);
    }
    call.states[k] = state.data;
  }
  table_of(data).update[rule][value.single ? 1 : 0](call);
  return nullptr;
}

/// firstNonFinite(values): index, or −1
napi_value first_non_finite(napi_env env, napi_callback_info info) {
  napi_value values[1], result;
  Reals reals;
  void* data;
  if (!arguments(env, info, values, &data) || !get_reals(env, values[0], reals)) return fail_arguments(env);
  const size_t index = table_of(data).first_non_finite[reals.single ? 1 : 0](reals.data, reals.count);
  const double number = index == reals.count ? -1 : static_cast<double>(index);
  return napi_create_double(env, number, &result) == napi_ok ? result : nullptr;
}

/// encodeTwoBit(target: Uint8Array, gradient, residual, threshold)
napi_value encode_two_bit(napi_env env, napi_callback_info info) {
  napi_value values[4];
  Bytes target;
  Reals gradient, residual;
  double threshold;
  void* data;
  if (!arguments(env, info, values, &data) || !get(env, values[0], target) || !get_singles(env, values[1], gradient) ||
      !get_singles(env, values[2], residual) || !get(env, values[3], threshold) || residual.count != gradient.count ||
      target.size != (gradient.count + 15) / 16 * 4) {
    return fail_arguments(env);
  }
  table_of(data).encode_two_bit(target.data, static_cast<const float*>(gradient.data), static_cast<float*>(residual.data), gradient.count,
                                static_cast<float>(threshold));
  return nullptr;
}

/// decodeTwoBit(target, source: Uint8Array, threshold)
napi_value decode_two_bit(napi_env env, napi_callback_info info) {
  napi_value values[3];
  Reals target;
  Bytes source;
  double threshold;
  void* data;
  if (!arguments(env, info, values, &data) || !get_singles(env, values[0], target) || !get(env, values[1], source) ||
      !get(env, values[2], threshold) || source.size != (target.count + 15) / 16 * 4) {
    return fail_arguments(env);
  }
  table_of(data).decode_two_bit(static_cast<float*>(target.data), source.data, target.count, static_cast<float>(threshold));
  return nullptr;
}

bool is_aligned(const Bytes& bytes) { return reinterpret_cast<uintptr_t>(bytes.data) % alignof(uint16_t) == 0; }

/// encodeHalf(target: Uint8Array, gradient, residual)
napi_value encode_half(napi_env env, napi_callback_info info) {
  napi_value values[3];
  Bytes target;
  Reals gradient, residual;
  void* data;
  if (!arguments(env, info, values, &data) || !get(env, values[0], target) || !get_singles(env, values[1], gradient) ||
      !get_singles(env, values[2], residual) || residual.count != gradient.count || target.size != gradient.count * 2 || !is_aligned(target)) {
    return fail_arguments(env);
  }
  table_of(data).encode_half(reinterpret_cast<uint16_t*>(target.data), static_cast<const float*>(gradient.data),
                             static_cast<float*>(residual.data), gradient.count);
  return nullptr;
}

/// decodeHalf(target, source: Uint8Array)
napi_value decode_half(napi_env env, napi_callback_info info) {
  napi_value values[2];
  Reals target;
  Bytes source;
  void* data;
  if (!arguments(env, info, values, &data) || !get_singles(env, values[0], target) || !get(env, values[1], source) ||
      source.size != target.count * 2 || !is_aligned(source)) {
    return fail_arguments(env);
  }
  table_of(data).decode_half(static_cast<float*>(target.data), reinterpret_cast<const uint16_t*>(source.data), target.count);
  return nullptr;
}

void export_table(napi_env env, napi_value object, const ParameterTable& table) {
  set_function(env, object, "update", update, &table);
  set_function(env, object, "firstNonFinite", first_non_finite, &table);
  set_function(env, object, "encodeTwoBit", encode_two_bit, &table);
  set_function(env, object, "decodeTwoBit", decode_two_bit, &table);
  set_function(env, object, "encodeHalf", encode_half, &table);
  set_function(env, object, "decodeHalf", decode_half, &table);
}

}  // namespace

void export_parameters(napi_env env, napi_value exports) {
  napi_value best, generic;
  if (napi_create_object(env, &best) != napi_ok || napi_create_object(env, &generic) != napi_ok) return;
  export_table(env, best, best_parameters());
  export_table(env, generic, kGenericParameters);
  set_property(env, best, "generic", generic);
  set_property(env, exports, "parameters", best);
}

}  // namespace shoal
