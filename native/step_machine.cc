// The interpreter of step programs. Every operand is checked before an instruction touches anything: just before, or, where a program
// runs again and again, once.
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
#include <deque>
#include <optional>

#include "kernels.h"
#include "moves.h"
#include "small_buffer.h"

namespace shoal {

enum Opcode : int { kEnd, kCopy, kReduce, kSignal, kWait, kPublish, kMatch, kCallOut, kShift, kFault };

namespace {

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

/// The operands of a reduction; the call points into them.
class ReduceJob {
 public:
  ReduceJob(size_t target_count, size_t source_count, size_t tree_count) : targets(target_count), sources(source_count), tree(tree_count) {}
  SmallBuffer<uint8_t*, 16> targets, sources;
  SmallBuffer<int32_t, 64> tree;
  ReduceLoop loop = nullptr;
  ReduceCall call{};
  void run() const {
    if (call.count > 0) loop(call);
  }
};

/// An instruction whose operands have been checked: nothing that it touches lies outside its segments.
struct Step {
  Opcode opcode = kFault;
  size_t pc = 0, next = 0;
  /// Locations, in the order of the operands.
  uint8_t* at[3] = {};
  /// Bytes.
  uint64_t amount = 0;
  uint64_t peer = 0;
  /// Argument or tag.
  double number = 0;
  /// Where the code has the word of a signal, wait or publish: it may change between runs.
  size_t word = 0;
  const ReduceJob* job = nullptr;
};

/// Reads instructions. Functions that read operands fail at the end of the code.
class Decoder {
 public:
  Decoder(const double* code, size_t length, const std::vector<Segment>& segments, size_t peer_limit)
      : code_(code), length_(length), segments_(segments), peer_limit_(peer_limit) {}

  /// Leaves the step a fault when an operand is not valid.
  /// @param job where a reduction is kept, as long as the step.
  void decode(size_t pc, Step& step, std::optional<ReduceJob>& job) {
    uint64_t opcode;
    step.opcode = kFault;
    step.pc = next_ = pc;
    if (!index(opcode) || opcode >= kFault || !operands(static_cast<Opcode>(opcode), step, job)) return;
    step.opcode = static_cast<Opcode>(opcode);
    step.next = next_;
  }

 private:
  bool operands(Opcode opcode, Step& step, std::optional<ReduceJob>& job) {
    switch (opcode) {
      case kEnd: return true;
      case kCopy: return copy(step);
      case kReduce: return reduce(step, job);
      case kSignal:
      case kPublish: return location(4, 4, step.at[0]) && word(step) && location(4, 4, step.at[1]) && index(step.peer) && step.peer < peer_limit_;
      case kWait: return location(4, 4, step.at[0]) && word(step);
      case kMatch: return match(step);
      case kCallOut: return operand(step.number);
      case kShift: return shift(step);
      default: return false;
    }
  }

  bool copy(Step& step) {
    auto& [target, source, unused] = step.at;
    if (!room(5) || !peek_index(4, step.amount) || !location(step.amount, 1, target) || !location(step.amount, 1, source)) return false;
    next_++;
    return separate(target, step.amount, source, step.amount);
  }

  bool shift(Step& step) {
    auto& [result, through, next] = step.at;
    const auto& bytes = step.amount;
    if (!room(7) || !peek_index(6, step.amount) || !location(bytes, 1, result) || !location(bytes, 1, through) || !location(bytes, 1, next)) return false;
    next_++;
    if (bytes == 0) return true;
    const bool apart = result != through && through != next && result != next;
    return apart && separate(result, bytes, through, bytes) && separate(through, bytes, next, bytes) && separate(result, bytes, next, bytes);
  }

  bool reduce(Step& step, std::optional<ReduceJob>& kept) {
    uint64_t dtype, op, count, target_count, source_count, tree_count;
    double divisor;
    if (!index(dtype) || !index(op) || !index(count) || !operand(divisor) || !index(target_count)) return false;
    if (dtype >= kDTypes || op >= kOps || (!std::isnan(divisor) && !is_float(dtype))) return false;
    const ReduceLoop loop = kernels().reduce[dtype][op];
    const size_t element_bytes = kElementBytes[dtype];
    if (loop == nullptr || count > kMaxCount || target_count == 0 || target_count > length_ || !room(target_count * 2 + 1)) return false;
    if (!peek_index(target_count * 2, source_count) || source_count == 0 || source_count > length_) return false;
    const size_t before_tree = target_count * 2 + 1 + source_count * 2;
    if (!room(before_tree + 1) || !peek_index(before_tree, tree_count) || tree_count > length_ || !room(before_tree + 1 + tree_count)) return false;

    const size_t bytes = count * element_bytes;
    ReduceJob& job = kept.emplace(target_count, source_count, tree_count);
    step.job = &job;
    SmallBuffer<Range, 32> ranges(target_count + source_count);
    for (size_t k = 0; k < target_count; k++) {
      if (!location(bytes, element_bytes, job.targets[k])) return false;
      ranges[k] = {job.targets[k], bytes, true};
    }
    next_++;
    for (size_t k = 0; k < source_count; k++) {
      if (!location(bytes, element_bytes, job.sources[k])) return false;
      ranges[target_count + k] = {job.sources[k], bytes, false};
    }
    next_++;
    for (size_t k = 0; k < tree_count; k++) {
      const double node = code_[next_++];
      if (!(node >= -1 && node < 0x1p31) || static_cast<double>(static_cast<int32_t>(node)) != node) return false;
      job.tree[k] = static_cast<int32_t>(node);
    }
    size_t depth;
    if (!check_tree(job.tree.data(), tree_count, source_count, depth)) return false;
    if (ranges_conflict(ranges.data(), target_count + source_count)) return false;
    job.loop = loop;
    job.call = {count, Division::of(divisor), job.targets.data(), target_count, job.sources.data(), source_count, job.tree.data(), tree_count, depth};
    return true;
  }

  bool match(Step& step) {
    if (!room(6) || !peek_index(4, step.amount) || !location(step.amount, 1, step.at[0]) || !location(step.amount, 1, step.at[1])) return false;
    next_++;
    return operand(step.number);
  }

  bool word(Step& step) {
    step.word = next_;
    double number;
    return operand(number);
  }

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
  const size_t peer_limit_;
  size_t next_ = 0;
};

/// A yield that takes so long has given way to something that is no rank. That works for whole slices, after every yield, even if the peer
/// has come long before; a sleeper is woken ahead of it. So naps follow in place of yields, twice as many each time: after a peer that was only
/// late there are few. By the default slack of timers a nap takes some 70 microseconds.
constexpr double kSliceNs = 2e6;
constexpr struct timespec kNap = {0, 20'000};
constexpr int kNapsMin = 32;
constexpr int kNapsMax = 4096;

class Machine {
 public:
  Machine(const double* code, Registers registers) : code_(code), registers_(registers), spin_ns_(registers.spin_ns()), yields_(registers.yields()) {}

  static constexpr Status kContinue = static_cast<Status>(-1);

  /// kContinue, or why the program stops here.
  Status execute(const Step& step) {
    uint8_t* const* at = step.at;
    switch (step.opcode) {
      case kEnd: return Status::kDone;
      case kCopy:
        if (at[0] != at[1]) copy_bytes(at[0], at[1], step.amount);
        return kContinue;
      case kReduce: step.job->run(); return kContinue;
      case kShift:
        if (step.amount > 0) shift_bytes(at[0], at[1], at[2], step.amount);
        return kContinue;
      case kSignal:
      case kPublish: return announce(step);
      case kWait: return wait(step);
      case kMatch:
        if (std::memcmp(at[0], at[1], step.amount) == 0) return kContinue;
        registers_.argument() = step.number;
        return Status::kDiffers;
      case kCallOut: registers_.argument() = step.number; return Status::kCall;
      default: return Status::kFault;
    }
  }

  /// Notes where the program stops. `call` goes on after itself; every other instruction stays where it stopped.
  Status stop(const Step& step, Status status) {
    registers_.pc() = static_cast<double>(status == Status::kCall ? step.next : step.pc);
    return status;
  }

 private:
  Status announce(const Step& step) {
    uint32_t value;
    if (!to_word(code_[step.word], value)) return Status::kFault;
    auto* word = reinterpret_cast<uint32_t*>(step.at[0]);
    if (step.opcode == kPublish) __atomic_store_n(word, value, __ATOMIC_RELEASE);
    else if (value != 0) __atomic_fetch_add(word, value, __ATOMIC_RELEASE);
    // Adding 0 only looks whether the peer sleeps, after an instruction that announced: its fence is enough.
    if (step.opcode == kPublish || value != 0) __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (__atomic_load_n(reinterpret_cast<const uint32_t*>(step.at[1]), __ATOMIC_RELAXED) != 0) {
      registers_.doorbells()[step.peer >> 5] |= 1u << (step.peer & 31);
      rang_ = true;
    }
    return kContinue;
  }

  Status wait(const Step& step) {
    uint32_t value;
    if (!to_word(code_[step.word], value)) return Status::kFault;
    // Sleeping peers are rung before this rank waits for them, or works on while they could have begun.
    if (rang_) return Status::kWaiting;
    return reached(reinterpret_cast<const uint32_t*>(step.at[0]), value) ? kContinue : Status::kWaiting;
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
    for (double before = start;;) {
      for (int k = yields_ ? 1 : 32; k > 0; k--) {
        if (yields_) give_way();
        else pause_cpu();
        if (look(word, value)) return true;
      }
      const double now = now_ns();
      if (now - start >= spin_ns_) return false;
      if (yields_ && now - before >= kSliceNs) {
        naps_ = next_naps_;
        next_naps_ = std::min(2 * next_naps_, kNapsMax);
      }
      before = now;
    }
  }

  void give_way() {
    if (naps_ == 0) {
      sched_yield();
    } else {
      naps_--;
      nanosleep(&kNap, nullptr);
    }
  }

  const double* code_;
  Registers registers_;
  const double spin_ns_;
  const bool yields_;
  bool rang_ = false;
  /// Naps to take before the next yield.
  int naps_ = 0;
  int next_naps_ = kNapsMin;
};

}  // namespace

Status run_steps(const Program& program, Registers registers) {
  const auto& [code, length, segments] = program;
  uint64_t pc;
  if (!to_index(registers.pc(), pc) || pc >= length) return Status::kFault;
  Decoder decoder(code, length, segments->all, registers.peer_limit());
  Machine machine(code, registers);
  Step step;
  std::optional<ReduceJob> job;
  for (;;) {
    decoder.decode(pc, step, job);
    if (const Status status = machine.execute(step); status != Machine::kContinue) return machine.stop(step, status);
    pc = step.next;
  }
}

/// The steps up to the first after which nothing follows: an end, or a fault.
struct PreparedProgram::Decoded {
  Decoded(const Program& program, size_t peer_limit) : version(program.segments->version) {
    Decoder decoder(program.code, program.length, program.segments->all, peer_limit);
    for (size_t pc = 0;; pc = steps.back().next) {
      decoder.decode(pc, steps.emplace_back(), jobs.emplace_back());
      const Opcode opcode = steps.back().opcode;
      if (opcode != kReduce) jobs.pop_back();
      if (opcode == kEnd || opcode == kFault) return;
    }
  }
  const uint64_t version;
  std::vector<Step> steps;
  std::deque<std::optional<ReduceJob>> jobs;
};

PreparedProgram::PreparedProgram(const Program& program, size_t peer_limit) : program_(program), peer_limit_(peer_limit) {}
PreparedProgram::~PreparedProgram() = default;

Status PreparedProgram::run(Registers registers) {
  if (decoded_ == nullptr || decoded_->version != program_.segments->version) decoded_ = std::make_unique<Decoded>(program_, peer_limit_);
  Machine machine(program_.code, registers);
  for (const Step* step = decoded_->steps.data();; step++) {
    if (const Status status = machine.execute(*step); status != Machine::kContinue) return machine.stop(*step, status);
  }
}

}  // namespace shoal
