// Choice of the instruction set, conversions between all dtypes, and the checks on trees and ranges.
#include "kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "float16.h"

namespace shoal {

namespace {

KernelTables find_kernels() {
  KernelTables found{{}, 0};
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  // VBMI2 came with the CPUs that no longer slow down for wide vectors.
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vbmi2");
  if (avx2 && avx512) found.tables[found.count++] = &kAvx512Kernels;
  if (avx2) found.tables[found.count++] = &kAvx2Kernels;
#endif
  found.tables[found.count++] = &kGenericKernels;
  return found;
}

}  // namespace

const KernelTables& all_kernels() {
  static const KernelTables found = find_kernels();
  return found;
}

namespace {

// Storage of each dtype, and the value of an element as a C++ number.
template <class T>
struct Plain {
  using Element = T;
  static T value(T element) { return element; }
};
struct Half {
  using Element = uint16_t;
  static float value(uint16_t element) { return half_to_float(element); }
  static uint16_t rounded(float value) { return float_to_half(value); }
};
struct BFloat {
  using Element = uint16_t;
  static float value(uint16_t element) { return bfloat_to_float(element); }
  static uint16_t rounded(float value) { return float_to_bfloat(value); }
};
struct Boolean {
  using Element = uint8_t;
  static uint8_t value(uint8_t element) { return element != 0; }
};

/// Truncates; out of range gives the nearest bound; NaN gives 0.
template <class I, class F>
I saturated(F value) {
  using Limits = std::numeric_limits<I>;
  // Both bounds are powers of two (or 0): exact in F.
  const F below = static_cast<F>(Limits::min());
  const F above = std::ldexp(F(1), Limits::digits);
  if (!(value == value)) return 0;
  if (value < below) return Limits::min();
  if (value >= above) return Limits::max();
  return static_cast<I>(value);
}

template <class To, class V>
typename To::Element converted(V value) {
  using E = typename To::Element;
  if constexpr (std::is_same_v<To, Boolean>) {
    return value != 0;
  } else if constexpr (std::is_same_v<To, Half> || std::is_same_v<To, BFloat>) {
    if constexpr (std::is_same_v<V, float>) return To::rounded(value);
    else if constexpr (std::is_same_v<V, int64_t>) return To::rounded(double_to_float_odd(int64_to_double_odd(value)));
    else return To::rounded(double_to_float_odd(static_cast<double>(value)));
  } else if constexpr (std::is_integral_v<E> && std::is_floating_point_v<V>) {
    return saturated<E>(value);
  } else {
    return static_cast<E>(value);
  }
}

template <class To, class From>
void convert(uint8_t* target, const uint8_t* source, size_t count) {
  auto* to = reinterpret_cast<typename To::Element*>(target);
  const auto* from = reinterpret_cast<const typename From::Element*>(source);
  for (size_t i = 0; i < count; i++) to[i] = converted<To>(From::value(from[i]));
}

#define SHOAL_FROM_ALL(To)                                                                                              \
  {convert<To, Plain<double>>,  convert<To, Plain<float>>,   convert<To, Half>,            convert<To, BFloat>,         \
   convert<To, Plain<int64_t>>, convert<To, Plain<int32_t>>, convert<To, Plain<int16_t>>,  convert<To, Plain<int8_t>>,  \
   convert<To, Plain<uint32_t>>, convert<To, Plain<uint16_t>>, convert<To, Plain<uint8_t>>, convert<To, Boolean>}

constexpr ConvertLoop kConvert[kDTypes][kDTypes] = {
    SHOAL_FROM_ALL(Plain<double>),  SHOAL_FROM_ALL(Plain<float>),    SHOAL_FROM_ALL(Half),            SHOAL_FROM_ALL(BFloat),
    SHOAL_FROM_ALL(Plain<int64_t>), SHOAL_FROM_ALL(Plain<int32_t>),  SHOAL_FROM_ALL(Plain<int16_t>),  SHOAL_FROM_ALL(Plain<int8_t>),
    SHOAL_FROM_ALL(Plain<uint32_t>), SHOAL_FROM_ALL(Plain<uint16_t>), SHOAL_FROM_ALL(Plain<uint8_t>), SHOAL_FROM_ALL(Boolean),
};

}  // namespace

ConvertLoop convert_loop(const KernelTable& table, size_t target_dtype, size_t source_dtype) {
  if (target_dtype == kF32 && (source_dtype == kF16 || source_dtype == kBF16)) return table.widen[source_dtype - kF16];
  if (source_dtype == kF32 && (target_dtype == kF16 || target_dtype == kBF16)) return table.narrow[target_dtype - kF16];
  return kConvert[target_dtype][source_dtype];
}

bool check_tree(const int32_t* tree, size_t tree_count, size_t source_count, size_t& depth) {
  size_t height = 0;
  depth = 0;
  for (size_t k = 0; k < tree_count; k++) {
    if (tree[k] >= 0) {
      if (static_cast<size_t>(tree[k]) >= source_count) return false;
      depth = std::max(depth, ++height);
    } else {
      if (tree[k] != -1 || height < 2) return false;
      height--;
    }
  }
  return height == 1;
}

bool ranges_conflict(Range* ranges, size_t count) {
  // Ranges are sorted by address; among equal ranges the target comes first, so that its exact source follows it.
  std::sort(ranges, ranges + count, [](const Range& a, const Range& b) { return a.from != b.from ? a.from < b.from : a.target > b.target; });
  for (size_t k = 1; k < count; k++) {
    const Range &before = ranges[k - 1], &after = ranges[k];
    if (before.bytes == 0 || after.bytes == 0 || before.from + before.bytes <= after.from) continue;
    const bool same = before.from == after.from && before.bytes == after.bytes && before.target && !after.target;
    if (!same) return true;
  }
  return false;
}

}  // namespace shoal
