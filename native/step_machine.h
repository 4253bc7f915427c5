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
///   byte 0  float64 pc   8  float64 argument   16  uint32 doorbells…
struct Registers {
  double* words;
  size_t word_count;

  double& pc() { return words[0]; }
  double& argument() { return words[1]; }
  uint32_t* doorbells() { return reinterpret_cast<uint32_t*>(words + 2); }
  size_t peer_limit() const { return (word_count - 2) * 64; }
};

struct SpinPolicy {
  double spin_ns;  // in all, over every wait of one run
  bool yields;     // give the CPU away between looks
};

Status run_steps(const double* code, size_t length, const std::vector<Segment>& segments, Registers registers, SpinPolicy spin);

}  // namespace shoal
