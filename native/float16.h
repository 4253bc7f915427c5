// Half-precision conversions by bits, one element at a time; loops over them vectorise.
#pragma once
#include <cstdint>

namespace shoal {

// Internal linkage: the same text is compiled for several instruction sets and must not be merged over them.
namespace {

inline uint32_t bits_of(float value) { return __builtin_bit_cast(uint32_t, value); }
inline float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }

/// Exact. Denormals become normal through the multiplication by 2^112 (the difference of the exponent biases).
inline float half_to_float(uint16_t half) {
  const uint32_t magnitude = half & 0x7fffu;
  const uint32_t finite = bits_of(float_of(magnitude << 13) * 0x1p112f);
  const uint32_t special = magnitude >= 0x7c00u ? 0x7f800000u : 0u;
  return float_of(finite | special | (static_cast<uint32_t>(half & 0x8000u) << 16));
}

/// Rounds to nearest even; overflows to infinity; NaN stays NaN.
inline uint16_t float_to_half(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Below 2^-14 the result is denormal: adding 0.5, whose last place is 2^-24, lets the adder round.
  const uint32_t denormal = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t normal = (magnitude + 0xc8000fffu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  const uint32_t result = magnitude < 0x38800000u ? denormal : (magnitude < 0x47800000u ? normal : special);
  return static_cast<uint16_t>(result | ((bits >> 16) & 0x8000u));
}

inline float bfloat_to_float(uint16_t value) { return float_of(static_cast<uint32_t>(value) << 16); }

inline uint16_t float_to_bfloat(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x0040u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

/// Converts to float32 with "round to odd": the lost bits leave their trace in the last one, so that a second rounding to 16 bits
/// gives the result of one rounding. Boldo & Melquiond, "Emulation of FMA and correctly rounded sums", 2008.
inline float double_to_float_odd(double value) {
  const float nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || value != value) return nearest;
  uint32_t bits = bits_of(nearest);
  const double exact = value < 0 ? -value : value;
  const double rounded = nearest < 0 ? -static_cast<double>(nearest) : static_cast<double>(nearest);
  if (rounded > exact) bits -= 1;
  return float_of(bits | 1u);
}

/// Converts to float64, rounded to odd above 2^53.
inline double int64_to_double_odd(int64_t value) {
  const uint64_t magnitude = value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  const uint64_t kept = magnitude < (1ull << 53) ? magnitude : (magnitude & ~0xfffull) | ((magnitude & 0xfffull) != 0 ? 0x800ull : 0ull);
  const double result = static_cast<double>(kept);
  return value < 0 ? -result : result;
}

}  // namespace
}  // namespace shoal
