// Arithmetic of a parameter server: updates of parameters by gradients, and lossy encodings of gradients.
//
// Contract: src/memory/parameter-kernels.ts. Bits equal those of the JavaScript twin, NaN payloads excepted.
#pragma once
#include <node_api.h>

#include <cstddef>
#include <cstdint>

namespace shoal {

/// Rules by code, as in parameter-kernels.ts.
enum UpdateRule : size_t { kSgd, kMomentum, kNesterov, kAdam, kAdagrad, kFtrl };
constexpr size_t kUpdateRules = 6;
constexpr size_t kUpdateStates[kUpdateRules] = {0, 1, 1, 2, 1, 2};
/// Numbers of parameters; the first four are rescale, clip, weight decay and learning rate.
constexpr size_t kUpdateParameters[kUpdateRules] = {4, 5, 5, 9, 5, 6};

struct UpdateCall {
  size_t count;
  void* value;
  const void* gradient;
  void* states[2];
  const double* parameters;
};

using UpdateLoop = void (*)(const UpdateCall&);
/// Index of the first NaN or infinity; `count` when there is none.
using FiniteLoop = size_t (*)(const void* values, size_t count);

struct ParameterTable {
  UpdateLoop update[kUpdateRules][2];  // float64, float32
  FiniteLoop first_non_finite[2];
  void (*encode_two_bit)(uint8_t* target, const float* gradient, float* residual, size_t count, float threshold);
  void (*decode_two_bit)(float* target, const uint8_t* source, size_t count, float threshold);
  void (*encode_half)(uint16_t* target, const float* gradient, float* residual, size_t count);
  void (*decode_half)(float* target, const uint16_t* source, size_t count);
};

extern const ParameterTable kGenericParameters;
#if defined(__x86_64__)
extern const ParameterTable kAvx2Parameters;
#endif

/// Adds an object `parameters` of functions, which has an object `generic` of the loops for any CPU.
void export_parameters(napi_env env, napi_value exports);

}  // namespace shoal
