// Reading arguments and throwing errors at the border to JavaScript.
//
// The TypeScript side checks what users pass; these checks only keep a wrong call from touching memory.
#pragma once
#include <node_api.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace shoal {

/// Throws an Error with `code` 'ESTATE'-like text and returns nullptr, so that callers can `return fail(…)`.
inline napi_value fail(napi_env env, const char* code, const char* message) {
  napi_throw_error(env, code, message);
  return nullptr;
}

inline napi_value fail_arguments(napi_env env) { return fail(env, "EINVAL", "shoal addon: wrong arguments"); }

/// @param data receives the data that the function was made with, if wanted.
template <size_t N>
bool arguments(napi_env env, napi_callback_info info, napi_value (&values)[N], void** data = nullptr) {
  size_t count = N;
  return napi_get_cb_info(env, info, &count, values, nullptr, data) == napi_ok && count == N;
}

inline bool get(napi_env env, napi_value value, double& out) { return napi_get_value_double(env, value, &out) == napi_ok; }

/// Reads a whole number of [least, most], exactly; `most` is at most 2^53.
template <class T>
bool get_whole(napi_env env, napi_value value, double least, double most, T& out) {
  double number;
  if (!get(env, value, number) || !(number >= least && number <= most) || number != std::trunc(number)) return false;
  out = static_cast<T>(number);
  return true;
}

/// Reads a whole number below `limit`.
template <class T>
bool get_index(napi_env env, napi_value value, double limit, T& out) {
  return get_whole(env, value, 0, limit - 1, out);
}

/// Reads a descriptor, as far as a number can tell; −1 is none, which the system reports.
inline bool get_descriptor(napi_env env, napi_value value, int& out) { return get_whole(env, value, -1, INT32_MAX, out); }

inline bool get(napi_env env, napi_value value, bool& out) { return napi_get_value_bool(env, value, &out) == napi_ok; }

/// The elements of a typed array over any kind of buffer.
template <class T, napi_typedarray_type kType>
struct Elements {
  T* data;
  size_t size;
};

using Bytes = Elements<uint8_t, napi_uint8_array>;
using Doubles = Elements<double, napi_float64_array>;
using Words = Elements<uint32_t, napi_uint32_array>;

template <class T, napi_typedarray_type kType>
bool get(napi_env env, napi_value value, Elements<T, kType>& out) {
  napi_typedarray_type type;
  void* data = nullptr;
  size_t length = 0;
  if (napi_get_typedarray_info(env, value, &type, &length, &data, nullptr, nullptr) != napi_ok || type != kType) return false;
  out = {static_cast<T*>(data), length};
  return true;
}

template <class T>
bool get_external(napi_env env, napi_value value, T*& out) {
  void* data = nullptr;
  if (napi_get_value_external(env, value, &data) != napi_ok || data == nullptr) return false;
  out = static_cast<T*>(data);
  return true;
}

/// Throws if the engine has refused a call: while the addon is loaded, that ends the loading, and the loader reports it.
inline void expect(napi_env env, napi_status status, const char* what) {
  bool pending = false;
  if (status != napi_ok && napi_is_exception_pending(env, &pending) == napi_ok && !pending) fail(env, "EINVAL", what);
}

inline void set_property(napi_env env, napi_value object, const char* name, napi_value value) {
  expect(env, napi_set_named_property(env, object, name, value), name);
}

inline void set_number(napi_env env, napi_value object, const char* name, double value) {
  napi_value number = nullptr;
  expect(env, napi_create_double(env, value, &number), name);
  if (number != nullptr) set_property(env, object, name, number);
}

inline void set_text(napi_env env, napi_value object, const char* name, const char* text) {
  napi_value value = nullptr;
  expect(env, napi_create_string_utf8(env, text, NAPI_AUTO_LENGTH, &value), name);
  if (value != nullptr) set_property(env, object, name, value);
}

inline void set_function(napi_env env, napi_value object, const char* name, napi_callback callback, const void* data = nullptr) {
  napi_value function = nullptr;
  expect(env, napi_create_function(env, name, NAPI_AUTO_LENGTH, callback, const_cast<void*>(data), &function), name);
  if (function != nullptr) set_property(env, object, name, function);
}

}  // namespace shoal
