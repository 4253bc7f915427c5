// The loops, compiled once per instruction set: the including file defines SHOAL_ISA and SHOAL_PARAMETERS.
//
// Every operation rounds to T, in the order written; the twin in src/memory/parameter-kernels does the same with
// Math.fround. Arrays of one call are apart. Conditions are selections, and counts are read before the first store, so that
// the loops vectorise.

#if defined(__clang__)
#define SHOAL_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define SHOAL_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace shoal {
namespace SHOAL_ISA {
namespace {

inline float root(float x) { return __builtin_sqrtf(x); }
inline double root(double x) { return __builtin_sqrt(x); }

/// The treatment of a gradient that all rules share.
template <class T>
struct Gradient {
  T rescale, clip, decay;
  explicit Gradient(const double* p) : rescale(static_cast<T>(p[0])), clip(static_cast<T>(p[1])), decay(static_cast<T>(p[2])) {}
  /// The gradient, rescaled and clipped; NaN stays NaN.
  T plain(T gradient) const {
    const T g = rescale * gradient;
    const T least = g < -clip ? -clip : g;
    return least > clip ? clip : least;
  }
  T decayed(T gradient, T value) const { return plain(gradient) + decay * value; }
};

template <class T>
void sgd(const UpdateCall& call) {
  T* value = static_cast<T*>(call.value);
  const T* gradient = static_cast<const T*>(call.gradient);
  const Gradient<T> prepare(call.parameters);
  const T rate = static_cast<T>(call.parameters[3]);
  const size_t count = call.count;
  SHOAL_INDEPENDENT
  for (size_t i = 0; i < count; i++) value[i] = value[i] - rate * prepare.decayed(gradient[i], value[i]);
}

template <class T, bool Nesterov>
void momentum(const UpdateCall& call) {
  T* value = static_cast<T*>(call.value);
  T* velocity = static_cast<T*>(call.states[0]);
  const T* gradient = static_cast<const T*>(call.gradient);
  const Gradient<T> prepare(call.parameters);
  const T rate = static_cast<T>(call.parameters[3]), mu = static_cast<T>(call.parameters[4]);
  const size_t count = call.count;
  SHOAL_INDEPENDENT
  for (size_t i = 0; i < count; i++) {
    const T pull = rate * prepare.decayed(gradient[i], value[i]);
    const T speed = mu * velocity[i] - pull;
    velocity[i] = speed;
    value[i] = value[i] + (Nesterov ? mu * speed - pull : speed);
  }
}

template <class T>
void adam(const UpdateCall& call) {
  T* value = static_cast<T*>(call.value);
  T* mean = static_cast<T*>(call.states[0]);
  T* variance = static_cast<T*>(call.states[1]);
  const T* gradient = static_cast<const T*>(call.gradient);
  const double* p = call.parameters;
  const Gradient<T> prepare(p);
  const T rate = static_cast<T>(p[3]), epsilon = static_cast<T>(p[8]);
  const T beta1 = static_cast<T>(p[4]), rest1 = static_cast<T>(p[5]), beta2 = static_cast<T>(p[6]), rest2 = static_cast<T>(p[7]);
  const size_t count = call.count;
  SHOAL_INDEPENDENT
  for (size_t i = 0; i < count; i++) {
    const T g = prepare.decayed(gradient[i], value[i]);
    const T m = beta1 * mean[i] + rest1 * g;
    const T v = beta2 * variance[i] + rest2 * g * g;
    mean[i] = m;
    variance[i] = v;
    value[i] = value[i] - rate * m / (root(v) + epsilon);
  }
}

template <class T>
void adagrad(const UpdateCall& call) {
  T* value = static_cast<T*>(call.value);
  T* history = static_cast<T*>(call.states[0]);
  const T* gradient = static_cast<const T*>(call.gradient);
  const Gradient<T> prepare(call.parameters);
  const T rate = static_cast<T>(call.parameters[3]), epsilon = static_cast<T>(call.parameters[4]);
  const size_t count = call.count;
  SHOAL_INDEPENDENT
  for (size_t i = 0; i < count; i++) {
    const T g = prepare.decayed(gradient[i], value[i]);
    const T h = history[i] + g * g;
    history[i] = h;
    value[i] = value[i] - rate * g / (root(h) + epsilon);
  }
}

template <class T>
void ftrl(const UpdateCall& call) {
  T* value = static_cast<T*>(call.value);
  T* z = static_cast<T*>(call.states[0]);
  T* n = static_cast<T*>(call.states[1]);
  const T* gradient = static_cast<const T*>(call.gradient);
  const Gradient<T> prepare(call.parameters);
  const T rate = static_cast<T>(call.parameters[3]), lambda1 = static_cast<T>(call.parameters[4]), beta = static_cast<T>(call.parameters[5]);
  const size_t count = call.count;
  SHOAL_INDEPENDENT
  for (size_t i = 0; i < count; i++) {
    const T g = prepare.plain(gradient[i]);
    const T squares = n[i] + g * g;
    const T sigma = (root(squares) - root(n[i])) / rate;
    const T sum = z[i] + (g - sigma * value[i]);
    n[i] = squares;
    z[i] = sum;
    const T magnitude = sum < T(0) ? -sum : sum;
    const T shrunk = (sum > T(0) ? lambda1 : -lambda1) - sum;
    const T moved = shrunk / ((beta + root(squares)) / rate + prepare.decay);
    value[i] = magnitude <= lambda1 ? T(0) : moved;
  }
}

// NaN and infinity have all bits of the exponent set.
inline bool non_finite(float value) { return (__builtin_bit_cast(uint32_t, value) & 0x7f800000u) == 0x7f800000u; }
inline bool non_finite(double value) { return (__builtin_bit_cast(uint64_t, value) & 0x7ff0000000000000u) == 0x7ff0000000000000u; }

template <class T>
size_t first_non_finite(const void* from, size_t count) {
  constexpr size_t block = 1024;
  const T* values = static_cast<const T*>(from);
  for (size_t start = 0; start < count; start += block) {
    const size_t size = std::min(block, count - start);
    unsigned found = 0;
    for (size_t i = 0; i < size; i++) found |= non_finite(values[start + i]);
    if (found == 0) continue;
    for (size_t i = start;; i++) {
      if (non_finite(values[i])) return i;
    }
  }
  return count;
}

// Two-bit codes: 11 is +threshold, 10 −threshold, 00 zero, 01 not finite. Sixteen to a little-endian word; element j of a word is
// in byte j / 4, the first of a byte in its highest bits.
constexpr size_t kPerWord = 16;
constexpr uint32_t kShift[kPerWord] = {6, 4, 2, 0, 14, 12, 10, 8, 22, 20, 18, 16, 30, 28, 26, 24};

inline uint32_t encode_word(const float* gradient, float* residual, size_t count, float threshold) {
  uint32_t word = 0;
  SHOAL_INDEPENDENT
  for (size_t j = 0; j < count; j++) {
    const float sum = residual[j] + gradient[j];
    const bool lost = non_finite(sum), above = sum >= threshold, below = sum <= -threshold;
    const float sent = above ? threshold : (below ? -threshold : 0.0f);
    const float left = sum - sent;
    residual[j] = lost ? 0.0f : left;
    const uint32_t code = lost ? 1u : (above ? 3u : (below ? 2u : 0u));
    word |= code << kShift[j];
  }
  return word;
}

inline void decode_word(float* target, uint32_t word, size_t count, float threshold) {
  SHOAL_INDEPENDENT
  for (size_t j = 0; j < count; j++) {
    const uint32_t code = (word >> kShift[j]) & 3u;
    const float level = code == 3u ? threshold : (code == 2u ? -threshold : 0.0f);
    target[j] = code == 1u ? __builtin_nanf("") : level;
  }
}

void encode_two_bit(uint8_t* target, const float* gradient, float* residual, size_t count, float threshold) {
  size_t i = 0;
  for (; i + kPerWord <= count; i += kPerWord) {
    const uint32_t word = encode_word(gradient + i, residual + i, kPerWord, threshold);
    std::memcpy(target + i / 4, &word, 4);
  }
  if (i < count) {
    const uint32_t word = encode_word(gradient + i, residual + i, count - i, threshold);
    std::memcpy(target + i / 4, &word, 4);
  }
}

void decode_two_bit(float* target, const uint8_t* source, size_t count, float threshold) {
  uint32_t word;
  size_t i = 0;
  for (; i + kPerWord <= count; i += kPerWord) {
    std::memcpy(&word, source + i / 4, 4);
    decode_word(target + i, word, kPerWord, threshold);
  }
  if (i < count) {
    std::memcpy(&word, source + i / 4, 4);
    decode_word(target + i, word, count - i, threshold);
  }
}

constexpr float kHalfMost = 65504.0f;

#if defined(SHOAL_F16C)
/// Encodes eight at a time; returns the number of encoded elements.
inline size_t encode_halves(uint16_t* target, const float* gradient, float* residual, size_t count) {
  const __m256 most = _mm256_set1_ps(kHalfMost), least = _mm256_set1_ps(-kHalfMost), sign = _mm256_set1_ps(-0.0f);
  const __m256 infinity = _mm256_set1_ps(__builtin_inff());
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 sum = _mm256_add_ps(_mm256_loadu_ps(residual + i), _mm256_loadu_ps(gradient + i));
    // Values not less than infinity: infinite, or NaN.
    const __m256 lost = _mm256_cmp_ps(_mm256_andnot_ps(sign, sum), infinity, _CMP_NLT_UQ);
    const __m256 held = _mm256_min_ps(most, _mm256_max_ps(least, sum));
    const __m128i halves = _mm256_cvtps_ph(_mm256_blendv_ps(held, sum, lost), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target + i), halves);
    _mm256_storeu_ps(residual + i, _mm256_andnot_ps(lost, _mm256_sub_ps(sum, _mm256_cvtph_ps(halves))));
  }
  return i;
}

inline size_t decode_halves(float* target, const uint16_t* source, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm256_storeu_ps(target + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i))));
  }
  return i;
}
#else
inline size_t encode_halves(uint16_t*, const float*, float*, size_t) { return 0; }
inline size_t decode_halves(float*, const uint16_t*, size_t) { return 0; }
#endif

void encode_half(uint16_t* target, const float* gradient, float* residual, size_t count) {
  SHOAL_INDEPENDENT
  for (size_t i = encode_halves(target, gradient, residual, count); i < count; i++) {
    const float sum = residual[i] + gradient[i];
    const bool lost = non_finite(sum);
    // The part that a half cannot hold stays in the residual, instead of becoming infinite.
    const float held = sum > kHalfMost ? kHalfMost : (sum < -kHalfMost ? -kHalfMost : sum);
    const uint16_t half = float_to_half(lost ? sum : held);
    target[i] = half;
    const float left = sum - half_to_float(half);
    residual[i] = lost ? 0.0f : left;
  }
}

void decode_half(float* target, const uint16_t* source, size_t count) {
  SHOAL_INDEPENDENT
  for (size_t i = decode_halves(target, source, count); i < count; i++) target[i] = half_to_float(source[i]);
}

}  // namespace
}  // namespace SHOAL_ISA

using namespace SHOAL_ISA;

const ParameterTable SHOAL_PARAMETERS = {
    {
        {sgd<double>, sgd<float>},
        {momentum<double, false>, momentum<float, false>},
        {momentum<double, true>, momentum<float, true>},
        {adam<double>, adam<float>},
        {adagrad<double>, adagrad<float>},
        {ftrl<double>, ftrl<float>},
    },
    {first_non_finite<double>, first_non_finite<float>},
    encode_two_bit,
    decode_two_bit,
    encode_half,
    decode_half,
};

}  // namespace shoal
