// The interpreter of step programs. Every operand is checked before an instruction touches anything.
//
// Ordering, for any CPU: a program's writes before `signal` are visible to every reader that saw the word (release / acquire).
// Whether the other side sleeps is read after the word is raised, with a full fence between; the sleeper raises its flag, fences,
// and looks at the word once more. So one of the two always sees the other (Dekker's pattern).
#include "step_machine.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels.h"
#include "moves.h"
#include "small_buffer.h"

namespace shoal {
namespace {

enum Opcode : int { kEnd, kCopy, kReduce, kScale, kSignal, kWait, kPublish, kMatch, kCallOut, kConvert, kShift };

inline double now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

inline void pause_cpu() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Reads a non-negative integer operand.
inline bool to_index(double operand, uint64_t& out) {
  if (!(operand >= 0 && operand <= 9007199254740991.0)) return false;
  out = static_cast<uint64_t>(operand);
  return static_cast<double>(out) == operand;
}

/// Reads any safe integer, modulo 2^32.
inline bool to_word(double operand, uint32_t& out) {
  if (!(std::fabs(operand) <= 9007199254740991.0)) return false;
  const auto integer = static_cast<int64_t>(operand);
  out = static_cast<uint32_t>(integer);
  return static_cast<double>(integer) == operand;
}

bool aligned(const void* address, size_t bytes) { return reinterpret_cast<uintptr_t>(address) % bytes == 0; }

/// True if the ranges are apart, or exactly the same.
bool separate(const uint8_t* a, size_t a_bytes, const uint8_t* b, size_t b_bytes) {
  return a_bytes == 0 || b_bytes == 0 || a + a_bytes <= b || b + b_bytes <= a || (a == b && a_bytes == b_bytes);
}

class Machine {
 public:
  Machine(const double* code, size_t length, const std::vector<Segment>& segments, Registers registers)
      : code_(code), length_(length), segments_(segments), registers_(registers), spin_ns_(registers.spin_ns()), yields_(registers.yields()) {}

  Status run() {
    uint64_t start;
    if (!to_index(registers_.pc(), start) || start >= length_) return Status::kFault;
    pc_ = start;
    for (;;) {
      next_ = pc_;
      const Status status = step();
      if (status != kContinue) {
        // `call` resumes after itself; every other instruction stays where it stopped.
        registers_.pc() = static_cast<double>(status == Status::kCall ? next_ : pc_);
        return status;
      }
      pc_ = next_;
    }
  }

 private:
  static constexpr Status kContinue = static_cast<Status>(-1);

  Status step() {
    uint64_t opcode;
    if (!index(opcode)) return Status::kFault;
    switch (opcode) {
      case kEnd: return Status::kDone;
      case kCopy: return copy();
      case kReduce: return reduce();
      case kScale: return scale();
      case kSignal: return signal();
      case kWait: return wait();
      case kPublish: return publish();
      case kMatch: return match();
      case kCallOut: return operand(registers_.argument()) ? Status::kCall : Status::kFault;
      case kConvert: return convert();
      case kShift: return shift();
      default: return Status::kFault;
    }
  }

  Status copy() {
    uint64_t bytes;
    uint8_t *target, *source;
    if (!room(5) || !peek_index(4, bytes) || !location(bytes, 1, target) || !location(bytes, 1, source)) return Status::kFault;
    next_++;
    if (!separate(target, bytes, source, bytes)) return Status::kFault;
    if (target != source) copy_bytes(target, source, bytes);
    return kContinue;
  }

  Status shift() {
    uint64_t bytes;
    uint8_t *result, *through, *next;
    if (!room(7) || !peek_index(6, bytes) || !location(bytes, 1, result) || !location(bytes, 1, through) || !location(bytes, 1, next)) return Status::kFault;
    next_++;
    const bool apart = result != through && through != next && result != next;
    if (bytes == 0) return kContinue;
    if (!apart || !separate(result, bytes, through, bytes) || !separate(through, bytes, next, bytes) || !separate(result, bytes, next, bytes)) return Status::kFault;
    shift_bytes(result, through, next, bytes);
    return kContinue;
  }

  Status reduce() {
    uint64_t dtype, op, count, target_count, source_count, tree_count;
    double divisor;
    if (!index(dtype) || !index(op) || !index(count) || !operand(divisor) || !index(target_count)) return Status::kFault;
    if (dtype >= kDTypes || op >= kOps || (!std::isnan(divisor) && !is_float(dtype))) return Status::kFault;
    const ReduceLoop loop = kernels().reduce[dtype][op];
    const size_t element_bytes = kElementBytes[dtype];
    if (loop == nullptr || count > kMaxCount || target_count == 0 || target_count > length_ || !room(target_count * 2 + 1)) return Status::kFault;
    if (!peek_index(target_count * 2, source_count) || source_count == 0 || source_count > length_) return Status::kFault;
    if (!room(target_count * 2 + 1 + source_count * 2 + 1)) return Status::kFault;

    const size_t bytes = count * element_bytes;
    SmallBuffer<uint8_t*, 16> targets(target_count), sources(source_count);
    SmallBuffer<Range, 32> ranges(target_count + source_count);
    for (size_t k = 0; k < target_count; k++) {
      if (!location(bytes, element_bytes, targets[k])) return Status::kFault;
      ranges[k] = {targets[k], bytes, true};
    }
    next_++;
    for (size_t k = 0; k < source_count; k++) {
      if (!location(bytes, element_bytes, sources[k])) return Status::kFault;
      ranges[target_count + k] = {sources[k], bytes, false};
    }
    if (!index(tree_count) || tree_count > length_ || !room(tree_count)) return Status::kFault;
    SmallBuffer<int32_t, 64> tree(tree_count);
    for (size_t k = 0; k < tree_count; k++) {
      const double node = code_[next_++];
      if (!(node >= -1 && node < 0x1p31) || static_cast<double>(static_cast<int32_t>(node)) != node) return Status::kFault;
      tree[k] = static_cast<int32_t>(node);
    }
    size_t depth;
    if (!check_tree(tree.data(), tree_count, source_count, depth)) return Status::kFault;
    if (ranges_conflict(ranges.data(), target_count + source_count)) return Status::kFault;
    if (count == 0) return kContinue;
    loop({count, Division::of(divisor), targets.data(), target_count, sources.data(), source_count, tree.data(), tree_count, depth});
    return kContinue;
  }

  Status scale() {
    uint64_t dtype, count;
    double factor;
    uint8_t *target, *source;
    if (!index(dtype) || !index(count) || !operand(factor) || dtype >= kDTypes || !is_float(dtype) || count > kMaxCount) return Status::kFault;
    const size_t element_bytes = kElementBytes[dtype], bytes = count * element_bytes;
    if (!location(bytes, element_bytes, target) || !location(bytes, element_bytes, source)) return Status::kFault;
    if (!separate(target, bytes, source, bytes)) return Status::kFault;
    kernels().scale[dtype](target, source, count, factor);
    return kContinue;
  }

  Status convert() {
    uint64_t target_dtype, source_dtype, count;
    uint8_t *target, *source;
    if (!index(target_dtype) || !index(source_dtype) || !index(count)) return Status::kFault;
    if (target_dtype >= kDTypes || source_dtype >= kDTypes || count > kMaxCount) return Status::kFault;
    const size_t target_bytes = kElementBytes[target_dtype], source_bytes = kElementBytes[source_dtype];
    if (!location(count * target_bytes, target_bytes, target) || !location(count * source_bytes, source_bytes, source)) return Status::kFault;
    if (!separate(target, count * target_bytes, source, count * source_bytes)) return Status::kFault;
    convert_loop(kernels(), target_dtype, source_dtype)(target, source, count);
    return kContinue;
  }

  Status signal() {
    uint8_t *word, *sleeper;
    uint32_t add;
    uint64_t peer;
    if (!signal_operands(word, add, sleeper, peer)) return Status::kFault;
    // Adding 0 only looks whether the peer sleeps, after an instruction that announced: its fence is enough.
    if (add != 0) {
      __atomic_fetch_add(reinterpret_cast<uint32_t*>(word), add, __ATOMIC_RELEASE);
      __atomic_thread_fence(__ATOMIC_SEQ_CST);
    }
    ring_if_asleep(sleeper, peer);
    return kContinue;
  }

  Status publish() {
    uint8_t *word, *sleeper;
    uint32_t value;
    uint64_t peer;
    if (!signal_operands(word, value, sleeper, peer)) return Status::kFault;
    __atomic_store_n(reinterpret_cast<uint32_t*>(word), value, __ATOMIC_RELEASE);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    ring_if_asleep(sleeper, peer);
    return kContinue;
  }

  bool signal_operands(uint8_t*& word, uint32_t& value, uint8_t*& sleeper, uint64_t& peer) {
    double number;
    return location(4, 4, word) && operand(number) && to_word(number, value) && location(4, 4, sleeper) && index(peer) &&
           peer < registers_.peer_limit();
  }

  /// Must follow a fence after the announcement.
  void ring_if_asleep(const uint8_t* sleeper, uint64_t peer) {
    if (__atomic_load_n(reinterpret_cast<const uint32_t*>(sleeper), __ATOMIC_RELAXED) == 0) return;
    registers_.doorbells()[peer >> 5] |= 1u << (peer & 31);
    rang_ = true;
  }

  Status wait() {
    uint8_t* word;
    double number;
    uint32_t value;
    if (!location(4, 4, word) || !operand(number) || !to_word(number, value)) return Status::kFault;
    // Sleeping peers are rung before this rank waits for them, or works on while they could have begun.
    if (rang_) return Status::kWaiting;
    return reached(reinterpret_cast<const uint32_t*>(word), value) ? kContinue : Status::kWaiting;
  }

  static bool look(const uint32_t* word, uint32_t value) {
    return static_cast<int32_t>(__atomic_load_n(word, __ATOMIC_ACQUIRE) - value) >= 0;
  }

  bool reached(const uint32_t* word, uint32_t value) {
    if (look(word, value)) return true;
    if (!(spin_ns_ > 0)) return false;
    // Ranks that keep pace are a fraction of a microsecond apart: they need no clock.
    for (int k = yields_ ? 0 : 64; k > 0; k--) {
      pause_cpu();
      if (look(word, value)) return true;
    }
    const double start = now_ns();
    // The clock costs as much as several looks: it is read once per yield or per 32 pauses.
    for (;;) {
      for (int k = yields_ ? 1 : 32; k > 0; k--) {
        if (yields_) sched_yield();
        else pause_cpu();
        if (look(word, value)) return true;
      }
      if (now_ns() - start >= spin_ns_) return false;
    }
  }

  Status match() {
    uint8_t *theirs, *own;
    uint64_t bytes;
    double tag;
    if (!room(6) || !peek_index(4, bytes) || !location(bytes, 1, theirs) || !location(bytes, 1, own)) return Status::kFault;
    next_++;
    if (!operand(tag)) return Status::kFault;
    if (std::memcmp(theirs, own, bytes) == 0) return kContinue;
    registers_.argument() = tag;
    return Status::kDiffers;
  }

  // Functions that read operands. All fail at the end of the code.

  static constexpr uint64_t kMaxCount = 1ull << 48;

  bool room(size_t operands) const { return length_ - next_ >= operands; }

  bool operand(double& out) {
    if (next_ >= length_) return false;
    out = code_[next_++];
    return true;
  }

  bool index(uint64_t& out) {
    double number;
    return operand(number) && to_index(number, out);
  }

  bool peek_index(size_t ahead, uint64_t& out) const { return length_ - next_ > ahead && to_index(code_[next_ + ahead], out); }

  bool location(uint64_t bytes, size_t alignment, uint8_t*& out) {
    uint64_t segment, offset;
    if (!index(segment) || !index(offset) || segment >= segments_.size()) return false;
    const Segment& range = segments_[segment];
    if (offset > range.bytes || bytes > range.bytes - offset) return false;
    out = range.base + offset;
    return aligned(out, alignment);
  }

  const double* code_;
  const size_t length_;
  const std::vector<Segment>& segments_;
  Registers registers_;
  const double spin_ns_;
  const bool yields_;
  bool rang_ = false;
  size_t pc_ = 0;
  size_t next_ = 0;
};

}  // namespace

Status run_steps(const double* code, size_t length, const std::vector<Segment>& segments, Registers registers) {
  return Machine(code, length, segments, registers).run();
}

}  // namespace shoal
