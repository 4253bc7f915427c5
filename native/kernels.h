// Arithmetic on elements: the tables of loops, one per instruction set, and the checked entry points.
//
// Contract: src/memory/kernels.ts. Bits equal those of the JavaScript twin, NaN payloads excepted.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace shoal {

constexpr size_t kDTypes = 12;
constexpr size_t kOps = 7;

/// Dtypes by code, as in dtype.ts.
enum DType : size_t { kF64, kF32, kF16, kBF16, kI64, kI32, kI16, kI8, kU32, kU16, kU8, kBool };
/// Operators by code, as in reduce-op.ts.
enum Op : size_t { kSum, kProduct, kMin, kMax, kBitAnd, kBitOr, kBitXor };

constexpr size_t kElementBytes[kDTypes] = {8, 4, 2, 2, 8, 4, 2, 1, 4, 2, 1, 1};
inline bool is_float(size_t dtype) { return dtype <= kBF16; }

/// Division of a result before it is stored, or none.
struct Division {
  enum Kind { kNone, kMultiply, kDivide };
  Kind kind;
  /// The divisor, or, with kMultiply, its reciprocal: that of a power of two is exact, and so gives the same bits in less time.
  double by;

  /// @param divisor NaN: none.
  static Division of(double divisor) {
    if (std::isnan(divisor)) return {kNone, 1};
    int exponent;
    const bool exact = std::frexp(divisor, &exponent) == 0.5 && exponent > -64 && exponent < 64;
    return exact ? Division{kMultiply, 1 / divisor} : Division{kDivide, divisor};
  }
};

/// One reduction. The tree is postfix over `sources`; −1 combines the two on top.
struct ReduceCall {
  size_t count;
  Division division;
  uint8_t* const* targets;
  size_t target_count;
  const uint8_t* const* sources;
  size_t source_count;
  const int32_t* tree;
  size_t tree_count;
  size_t tree_depth;
};

using ReduceLoop = void (*)(const ReduceCall&);
using ScaleLoop = void (*)(uint8_t* target, const uint8_t* source, size_t count, double factor);
using ConvertLoop = void (*)(uint8_t* target, const uint8_t* source, size_t count);

struct KernelTable {
  const char* isa;
  ReduceLoop reduce[kDTypes][kOps];  // null where the operator is not defined on the dtype
  ScaleLoop scale[kDTypes];          // null for what is not a float
  ConvertLoop widen[2];              // float16, bfloat16 → float32
  ConvertLoop narrow[2];             // float32 → float16, bfloat16
};

extern const KernelTable kGenericKernels;
#if defined(__x86_64__)
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
#endif

/// Tables that this CPU can run, best first.
struct KernelTables {
  const KernelTable* tables[3];
  size_t count;
};
const KernelTables& all_kernels();

/// The best table for this CPU.
inline const KernelTable& kernels() { return *all_kernels().tables[0]; }

/// The loop that converts any dtype to any other. Never null.
ConvertLoop convert_loop(const KernelTable& table, size_t target_dtype, size_t source_dtype);

/// True if `tree` is a postfix expression over `source_count` sources that leaves one value; `depth` is then that of its stack.
bool check_tree(const int32_t* tree, size_t tree_count, size_t source_count, size_t& depth);

/// True when two of the ranges overlap, a target that is exactly a source excepted. Sorts the array.
struct Range {
  const uint8_t* from;
  size_t bytes;
  bool target;
};
bool ranges_conflict(Range* ranges, size_t count);

}  // namespace shoal
