// The interpreter of step programs. Contract and opcode table: src/memory/step-machine.ts.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace shoal {

/// States of a run, in the order of their codes in step-machine.ts.
enum class Status : int { kDone, kWaiting, kCall, kDiffers, kFault };

struct Segment {
  uint8_t* base = nullptr;
  size_t bytes = 0;
};

/// Layout shared with src/memory/step-machine/machine-registers.ts:
///   byte 0  float64 pc   8  argument   16  spin ns   24  yields   32  uint32 doorbells…
constexpr size_t kRegisterWords = 4;  // before the doorbells
struct Registers {
  double* words;
  size_t word_count;

  double& pc() { return words[0]; }
  double& argument() { return words[1]; }
  double spin_ns() const { return words[2]; }    // of each wait
  bool yields() const { return words[3] != 0; }  // give the CPU away between looks
  void wait(double spin, bool yielding) {
    words[2] = spin;
    words[3] = yielding ? 1 : 0;
  }
  uint32_t* doorbells() { return reinterpret_cast<uint32_t*>(words + kRegisterWords); }
  size_t peer_limit() const { return (word_count - kRegisterWords) * 64; }
};

struct Segments {
  explicit Segments(size_t count) : all(count) {}
  std::vector<Segment> all;
  /// Raised by every change.
  uint64_t version = 0;
};

/// Code and the memory it runs on.
struct Program {
  const double* code;
  size_t length;
  const Segments* segments;
};

/// Runs from the registers' pc until the program stops.
Status run_steps(const Program& program, Registers registers);

/// A program that is decoded once, and again when its memory has changed. Of its code only the words of signals, waits and
/// publications may change.
class PreparedProgram {
 public:
  PreparedProgram(const Program& program, size_t peer_limit);
  ~PreparedProgram();
  /// Runs from the start until the program stops.
  Status run(Registers registers);

 private:
  const Program program_;
  const size_t peer_limit_;
  struct Decoded;
  std::unique_ptr<Decoded> decoded_;
};

}  // namespace shoal
