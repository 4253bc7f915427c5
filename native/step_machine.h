// The interpreter of step programs. Contract and opcode table: src/memory/step-machine.ts.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace shoal {

/// By code, as in step-machine.ts.
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
  uint32_t* doorbells() { return reinterpret_cast<uint32_t*>(words + kRegisterWords); }
  size_t peer_limit() const { return (word_count - kRegisterWords) * 64; }
};

Status run_steps(const double* code, size_t length, const std::vector<Segment>& segments, Registers registers);

}  // namespace shoal
