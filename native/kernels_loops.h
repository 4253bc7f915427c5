// The loops, compiled once per instruction set: the including file defines SHOAL_ISA, SHOAL_ISA_NAME and SHOAL_TABLE.
//
// A reduction is evaluated block by block over a small stack, so that intermediate values stay in the L1 cache:
//
//   sources  s0 ▓▓░░░░   s1 ▓▓░░░░   s2 ▓▓░░░░          one block of each
//   stack    [s0][s1] ⊕→ [t0]  [t0][s2] ⊕→ target 0     temporaries belong to stack positions
//   targets  target 0 ▓▓ ──copy while hot──▶ target 1, target 2, …
//
// Balanced trees of 2, 3, 4 and 8 sources, the common ones, run in registers without a stack.
// Loops carry no dependence: a target is exactly a source or apart from it (checked before).

#if defined(__clang__)
#define SHOAL_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define SHOAL_INDEPENDENT _Pragma("GCC ivdep")
#endif

#define SHOAL_NOINLINE __attribute__((noinline))

namespace shoal {
namespace SHOAL_ISA {
namespace {

constexpr size_t kBlock = 512;
constexpr size_t kStackDepth = 16;

template <class T>
constexpr bool is_real = std::is_floating_point_v<T>;

/// Type in which arithmetic wraps without undefined behaviour.
template <class T>
using Wrapping = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

struct Sum {
  template <class T>
  static inline T apply(T a, T b) {
    if constexpr (is_real<T>) return a + b;
    else return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
  }
};
struct Product {
  template <class T>
  static inline T apply(T a, T b) {
    if constexpr (is_real<T>) return a * b;
    else return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
  }
};
template <class T>
using BitsOf = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

// A NaN gives NaN (through the sum). Equal values differ in bits only as −0 and +0: `or` keeps the sign, `and` drops it.
struct Min {
  template <class T>
  static inline T apply(T a, T b) {
    if constexpr (is_real<T>) {
      using B = BitsOf<T>;
      const T equal = __builtin_bit_cast(T, static_cast<B>(__builtin_bit_cast(B, a) | __builtin_bit_cast(B, b)));
      const T least = a < b ? a : (b < a ? b : equal);
      return (a != a) | (b != b) ? a + b : least;
    } else {
      return a < b ? a : b;
    }
  }
};
struct Max {
  template <class T>
  static inline T apply(T a, T b) {
    if constexpr (is_real<T>) {
      using B = BitsOf<T>;
      const T equal = __builtin_bit_cast(T, static_cast<B>(__builtin_bit_cast(B, a) & __builtin_bit_cast(B, b)));
      const T most = a > b ? a : (b > a ? b : equal);
      return (a != a) | (b != b) ? a + b : most;
    } else {
      return a > b ? a : b;
    }
  }
};
struct BitAnd {
  template <class T>
  static inline T apply(T a, T b) { return static_cast<T>(a & b); }
};
struct BitOr {
  template <class T>
  static inline T apply(T a, T b) { return static_cast<T>(a | b); }
};
struct BitXor {
  template <class T>
  static inline T apply(T a, T b) { return static_cast<T>(a ^ b); }
};

/// Elements that are computed on as they are stored.
template <class T>
struct Direct {
  using Element = T;
  using Value = T;
  static constexpr bool direct = true;
  static void load(T* to, const T* from, size_t count) { std::memcpy(to, from, count * sizeof(T)); }
  static void store(T* to, const T* from, size_t count) { std::memcpy(to, from, count * sizeof(T)); }
};

struct Half {
  using Element = uint16_t;
  using Value = float;
  static constexpr bool direct = false;
  static void load(float* to, const uint16_t* from, size_t count) {
    size_t i = 0;
#if defined(SHOAL_F16C)
    for (; i + 8 <= count; i += 8) _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
#endif
    for (; i < count; i++) to[i] = half_to_float(from[i]);
  }
  static void store(uint16_t* to, const float* from, size_t count) {
    size_t i = 0;
#if defined(SHOAL_F16C)
    for (; i + 8 <= count; i += 8) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
    }
#endif
    for (; i < count; i++) to[i] = float_to_half(from[i]);
  }
};

struct BFloat {
  using Element = uint16_t;
  using Value = float;
  static constexpr bool direct = false;
  static void load(float* to, const uint16_t* from, size_t count) {
    SHOAL_INDEPENDENT
    for (size_t i = 0; i < count; i++) to[i] = bfloat_to_float(from[i]);
  }
  static void store(uint16_t* to, const float* from, size_t count) {
    SHOAL_INDEPENDENT
    for (size_t i = 0; i < count; i++) to[i] = float_to_bfloat(from[i]);
  }
};

/// Any byte but 0 is true; a true result is stored as 1.
struct Boolean {
  using Element = uint8_t;
  using Value = uint8_t;
  static constexpr bool direct = false;
  static void load(uint8_t* to, const uint8_t* from, size_t count) {
    SHOAL_INDEPENDENT
    for (size_t i = 0; i < count; i++) to[i] = from[i] != 0;
  }
  static void store(uint8_t* to, const uint8_t* from, size_t count) { std::memcpy(to, from, count); }
};

template <class Op, class T>
void combine(T* to, const T* a, const T* b, size_t count) {
  SHOAL_INDEPENDENT
  for (size_t i = 0; i < count; i++) to[i] = Op::apply(a[i], b[i]);
}

template <class T>
void multiply(T* to, const T* from, size_t count, T factor) {
  SHOAL_INDEPENDENT
  for (size_t i = 0; i < count; i++) to[i] = from[i] * factor;
}

template <class T>
void divide(T* to, const T* from, size_t count, T divisor) {
  SHOAL_INDEPENDENT
  for (size_t i = 0; i < count; i++) to[i] = from[i] / divisor;
}

template <Division::Kind D, class T>
inline T divided(T value, T by) {
  if constexpr (D == Division::kMultiply) return value * by;
  if constexpr (D == Division::kDivide) return value / by;
  return value;
}

/// The number of sources if this is a balanced tree of 2, 3, 4 or 8 sources in any order, else 0; `order` receives them left to right.
inline size_t balanced_shape(const ReduceCall& call, int32_t (&order)[8]) {
  // The positions of −1 in the postfix of a balanced tree, as bits.
  constexpr uint32_t shape2 = 0b100, shape3 = 0b10100, shape4 = 0b1100100, shape8 = 0b111'0010'0110'0100;
  if (call.tree_count > 15) return 0;
  uint32_t shape = 0;
  size_t leaves = 0;
  for (size_t k = 0; k < call.tree_count; k++) {
    if (call.tree[k] < 0) shape |= 1u << k;
    else if (leaves < 8) order[leaves++] = call.tree[k];
  }
  switch (call.tree_count) {
    case 3: return shape == shape2 ? 2 : 0;
    case 5: return shape == shape3 ? 3 : 0;
    case 7: return shape == shape4 ? 4 : 0;
    case 15: return shape == shape8 ? 8 : 0;
    default: return 0;
  }
}

/// Stores the tree over N sources, elements `from` … `from + count` of each, in `to`.
template <class Op, Division::Kind D, size_t N, class T>
SHOAL_NOINLINE void balanced_block(T* to, const T* const (&s)[8], size_t from, size_t count, T by) {
  const T *s0 = s[0] + from, *s1 = s[1] + from;
  const T *s2 = N > 2 ? s[2] + from : nullptr, *s3 = N > 3 ? s[3] + from : nullptr;
  const T *s4 = N > 4 ? s[4] + from : nullptr, *s5 = N > 4 ? s[5] + from : nullptr;
  const T *s6 = N > 4 ? s[6] + from : nullptr, *s7 = N > 4 ? s[7] + from : nullptr;
  SHOAL_INDEPENDENT
  for (size_t i = 0; i < count; i++) {
    T value = Op::apply(s0[i], s1[i]);
    if constexpr (N == 3) value = Op::apply(value, s2[i]);
    if constexpr (N >= 4) value = Op::apply(value, Op::apply(s2[i], s3[i]));
    if constexpr (N == 8) value = Op::apply(value, Op::apply(Op::apply(s4[i], s5[i]), Op::apply(s6[i], s7[i])));
    value = divided<D>(value, by);
    to[i] = value;
  }
}

/// Bytes of each operand that are loaded, combined and stored at a time where there are several targets. A line of another core
/// that is read and only later written is transferred twice; one that is still on its way when it is written moves once.
constexpr size_t kChunkBytes = 256;

/// Distance of prefetches: the hardware follows a stream to the end of its page; this looks across it.
constexpr size_t kAheadBytes = 2048;

/// The elements in whole chunks that are followed by as many bytes as prefetches look ahead. After them nothing is asked for: another CPU
/// works on the bytes beyond the range, and would lose their lines.
template <class T>
constexpr size_t chunks_ahead(size_t count) {
  const size_t bytes = count * sizeof(T);
  return bytes < kAheadBytes ? 0 : (bytes - kAheadBytes) / kChunkBytes * (kChunkBytes / sizeof(T));
}

template <size_t N, class T>
inline void prefetch_chunk(const T* const (&sources)[8], size_t from) {
  for (size_t k = 0; k < N; k++) {
    const char* next = reinterpret_cast<const char*>(sources[k] + from) + kAheadBytes;
    for (size_t line = 0; line < kChunkBytes; line += 64) __builtin_prefetch(next + line);
  }
}

/// Reduces N sources into N targets: the exchange of a host's ranks in each other's memory. Stored from registers: by way of a
/// temporary block, 4 and 8 of them took 1.4 to 2 times as long.
template <class Op, Division::Kind D, size_t N, class T>
inline void exchange_block(T* const (&t)[8], const T* const (&s)[8], size_t from, size_t count, T by) {
  const T *s0 = s[0] + from, *s1 = s[1] + from;
  const T *s2 = N > 2 ? s[2] + from : nullptr, *s3 = N > 3 ? s[3] + from : nullptr;
  const T *s4 = N > 4 ? s[4] + from : nullptr, *s5 = N > 4 ? s[5] + from : nullptr;
  const T *s6 = N > 4 ? s[6] + from : nullptr, *s7 = N > 4 ? s[7] + from : nullptr;
  T *t0 = t[0] + from, *t1 = t[1] + from;
  T *t2 = N > 2 ? t[2] + from : nullptr, *t3 = N > 3 ? t[3] + from : nullptr;
  T *t4 = N > 4 ? t[4] + from : nullptr, *t5 = N > 4 ? t[5] + from : nullptr;
  T *t6 = N > 4 ? t[6] + from : nullptr, *t7 = N > 4 ? t[7] + from : nullptr;
  SHOAL_INDEPENDENT
  for (size_t i = 0; i < count; i++) {
    T value = Op::apply(s0[i], s1[i]);
    if constexpr (N == 3) value = Op::apply(value, s2[i]);
    if constexpr (N >= 4) value = Op::apply(value, Op::apply(s2[i], s3[i]));
    if constexpr (N == 8) value = Op::apply(value, Op::apply(Op::apply(s4[i], s5[i]), Op::apply(s6[i], s7[i])));
    value = divided<D>(value, by);
    t0[i] = value, t1[i] = value;
    if constexpr (N > 2) t2[i] = value;
    if constexpr (N > 3) t3[i] = value;
    if constexpr (N > 4) t4[i] = value, t5[i] = value, t6[i] = value, t7[i] = value;
  }
}

/// The hardware's own requests keep up to two streams filled; this serves more.
template <class Op, Division::Kind D, size_t N, class T>
SHOAL_NOINLINE void reduce_exchange(const ReduceCall& call, const T* const (&sources)[8], T by) {
  T* targets[8] = {};
  for (size_t k = 0; k < N; k++) targets[k] = reinterpret_cast<T*>(call.targets[k]);
  if constexpr (N > 2) return exchange_block<Op, D, N>(targets, sources, 0, call.count, by);
  constexpr size_t chunk = kChunkBytes / sizeof(T);
  const size_t count = call.count, asked = chunks_ahead<T>(count);
  const T* const pair[8] = {sources[0], sources[1]};  // in registers: stores through a T* could change what the caller's array holds
  size_t from = 0;
  for (; from < asked; from += chunk) {
    prefetch_chunk<N>(pair, from);
    exchange_block<Op, D, N>(targets, pair, from, chunk, by);
  }
  for (; from + chunk <= count; from += chunk) exchange_block<Op, D, N>(targets, pair, from, chunk, by);
  for (; from < count; from++) exchange_block<Op, D, N>(targets, pair, from, 1, by);
}

template <class T>
void store_all(const ReduceCall& call, const T* values, size_t from, size_t count) {
  if (count * sizeof(T) == kChunkBytes) {
    for (size_t t = 0; t < call.target_count; t++) std::memcpy(reinterpret_cast<T*>(call.targets[t]) + from, values, kChunkBytes);
  } else if (count > 0) {
    for (size_t t = 0; t < call.target_count; t++) std::memcpy(reinterpret_cast<T*>(call.targets[t]) + from, values, count * sizeof(T));
  }
}

template <class Op, Division::Kind D, size_t N, class T>
void reduce_balanced(const ReduceCall& call, const int32_t (&order)[8]) {
  const T* sources[8] = {};
  for (size_t k = 0; k < N; k++) sources[k] = reinterpret_cast<const T*>(call.sources[order[k]]);
  const T by = static_cast<T>(call.division.by);
  if (call.target_count == 1) return balanced_block<Op, D, N>(reinterpret_cast<T*>(call.targets[0]), sources, 0, call.count, by);
  if (call.target_count == N) return reduce_exchange<Op, D, N>(call, sources, by);
  constexpr size_t chunk = kChunkBytes / sizeof(T);
  const size_t asked = chunks_ahead<T>(call.count);
  alignas(64) T values[chunk];
  size_t from = 0;
  for (; from + chunk <= call.count; from += chunk) {
    if (from < asked) prefetch_chunk<N>(sources, from);
    balanced_block<Op, D, N>(values, sources, from, chunk, by);
    store_all(call, values, from, chunk);
  }
  balanced_block<Op, D, N>(values, sources, from, call.count - from, by);
  store_all(call, values, from, call.count - from);
}

template <class Op, Division::Kind D, class T>
bool try_reduce_balanced(const ReduceCall& call) {
  int32_t order[8];
  switch (balanced_shape(call, order)) {
    case 2: reduce_balanced<Op, D, 2, T>(call, order); return true;
    case 3: reduce_balanced<Op, D, 3, T>(call, order); return true;
    case 4: reduce_balanced<Op, D, 4, T>(call, order); return true;
    case 8: reduce_balanced<Op, D, 8, T>(call, order); return true;
    default: return false;
  }
}

template <class T>
void copy_to_others(const ReduceCall& call, size_t from, size_t count) {
  const T* first = reinterpret_cast<const T*>(call.targets[0]) + from;
  for (size_t t = 1; t < call.target_count; t++) std::memcpy(reinterpret_cast<T*>(call.targets[t]) + from, first, count * sizeof(T));
}

template <class D, class Op>
void reduce(const ReduceCall& call) {
  using E = typename D::Element;
  using V = typename D::Value;
  if constexpr (D::direct) {
    if constexpr (is_real<V>) {
      if (call.division.kind == Division::kMultiply && try_reduce_balanced<Op, Division::kMultiply, V>(call)) return;
      if (call.division.kind == Division::kDivide && try_reduce_balanced<Op, Division::kDivide, V>(call)) return;
    }
    if (call.division.kind == Division::kNone && try_reduce_balanced<Op, Division::kNone, V>(call)) return;
  }
  SmallBuffer<V, kStackDepth * kBlock> temporaries(call.tree_depth * kBlock);
  SmallBuffer<const V*, kStackDepth> stack(call.tree_depth);
  E* target = reinterpret_cast<E*>(call.targets[0]);
  const size_t block = call.target_count == 1 ? kBlock : kChunkBytes / sizeof(E);
  for (size_t from = 0; from < call.count; from += block) {
    const size_t count = std::min(block, call.count - from);
    size_t depth = 0;
    for (size_t k = 0; k < call.tree_count; k++) {
      if (call.tree[k] >= 0) {
        const E* source = reinterpret_cast<const E*>(call.sources[call.tree[k]]) + from;
        if constexpr (D::direct) {
          stack[depth++] = source;
        } else {
          V* loaded = temporaries.data() + depth * kBlock;
          D::load(loaded, source, count);
          stack[depth++] = loaded;
        }
      } else {
        depth--;
        V* to = temporaries.data() + (depth - 1) * kBlock;
        if constexpr (D::direct) {
          if (k + 1 == call.tree_count) to = target + from;
        }
        combine<Op>(to, stack[depth - 1], stack[depth], count);
        stack[depth - 1] = to;
      }
    }
    if constexpr (is_real<V>) {
      if (call.division.kind != Division::kNone) {
        V* to = temporaries.data();
        if constexpr (D::direct) to = target + from;
        const V by = static_cast<V>(call.division.by);
        if (call.division.kind == Division::kMultiply) multiply(to, stack[0], count, by);
        else divide(to, stack[0], count, by);
        stack[0] = to;
      }
    }
    if (reinterpret_cast<const void*>(stack[0]) != target + from) D::store(target + from, stack[0], count);
    copy_to_others<E>(call, from, count);
  }
}

template <class D>
void scale(uint8_t* target, const uint8_t* source, size_t count, double factor) {
  using E = typename D::Element;
  using V = typename D::Value;
  E* to = reinterpret_cast<E*>(target);
  const E* from = reinterpret_cast<const E*>(source);
  if constexpr (D::direct) {
    multiply(to, from, count, static_cast<V>(factor));
  } else {
    alignas(64) V block[kBlock];
    for (size_t start = 0; start < count; start += kBlock) {
      const size_t size = std::min(kBlock, count - start);
      D::load(block, from + start, size);
      multiply(block, block, size, static_cast<V>(factor));
      D::store(to + start, block, size);
    }
  }
}

template <class D>
void widen(uint8_t* target, const uint8_t* source, size_t count) {
  D::load(reinterpret_cast<float*>(target), reinterpret_cast<const uint16_t*>(source), count);
}

template <class D>
void narrow(uint8_t* target, const uint8_t* source, size_t count) {
  D::store(reinterpret_cast<uint16_t*>(target), reinterpret_cast<const float*>(source), count);
}

#define SHOAL_REAL(D) {reduce<D, Sum>, reduce<D, Product>, reduce<D, Min>, reduce<D, Max>, nullptr, nullptr, nullptr}
// Where signs do not matter, signed and unsigned types share the loops of the unsigned.
#define SHOAL_INTEGER(T, Unsigned)                                                                          \
  {reduce<Direct<Unsigned>, Sum>, reduce<Direct<Unsigned>, Product>, reduce<Direct<T>, Min>,            \
   reduce<Direct<T>, Max>,        reduce<Direct<Unsigned>, BitAnd>,  reduce<Direct<Unsigned>, BitOr>,   \
   reduce<Direct<Unsigned>, BitXor>}

}  // namespace
}  // namespace SHOAL_ISA

using namespace SHOAL_ISA;

const KernelTable SHOAL_TABLE = {
    SHOAL_ISA_NAME,
    {
        SHOAL_REAL(Direct<double>),
        SHOAL_REAL(Direct<float>),
        SHOAL_REAL(Half),
        SHOAL_REAL(BFloat),
        SHOAL_INTEGER(int64_t, uint64_t),
        SHOAL_INTEGER(int32_t, uint32_t),
        SHOAL_INTEGER(int16_t, uint16_t),
        SHOAL_INTEGER(int8_t, uint8_t),
        SHOAL_INTEGER(uint32_t, uint32_t),
        SHOAL_INTEGER(uint16_t, uint16_t),
        SHOAL_INTEGER(uint8_t, uint8_t),
        // Sum is or, product is and; on 0 and 1, min and max are the same two.
        {reduce<Boolean, BitOr>, reduce<Boolean, BitAnd>, reduce<Boolean, BitAnd>, reduce<Boolean, BitOr>, reduce<Boolean, BitAnd>,
         reduce<Boolean, BitOr>, reduce<Boolean, BitXor>},
    },
    {scale<Direct<double>>, scale<Direct<float>>, scale<Half>, scale<BFloat>},
    {widen<Half>, widen<BFloat>},
    {narrow<Half>, narrow<BFloat>},
};

}  // namespace shoal
