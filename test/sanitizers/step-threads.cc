// Ranks of one host as threads of one process: each runs its programs of a series of operations over shared memory, as
// processes do, with the addon's step machine. Built with ThreadSanitizer, it finds every access of two ranks that the protocol of
// announcements and signals does not order. Cases come from scripts/step-cases.ts, which lowers real plans:
//
//   ranks headerBytes slotBytes stagingBytes rounds operations
//   per operation: 1 if it sums in place, else 0 · bufferBytes data, input, output · slot-signal count · offset of the signals · per rank, a program
//   a program: length, code · count, operands that take the operation's number · cardBytes, card
//              · count, segments: 0 slot rank | 1 header rank | 2 buffer rank which | 3 scratch rank | 4 card
//
// Exit code 0: every operation ended, and every rank has what it expects in its buffers.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "../../native/step_machine.h"

namespace {

using shoal::Registers;
using shoal::Segment;
using shoal::Status;

constexpr size_t kSlots = 2;
constexpr size_t kBuffers = 3;
constexpr size_t kLine = 64;

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "step-threads: %s\n", what);
  std::exit(2);
}

/// Reads whole numbers, and `NaN`.
class Reader {
 public:
  explicit Reader(const char* path) : file_(path) {
    if (!file_) die("the cases cannot be read");
  }
  double number() {
    std::string word;
    if (!(file_ >> word)) die("the cases end too soon");
    return std::strtod(word.c_str(), nullptr);
  }
  size_t count() { return static_cast<size_t>(number()); }
  std::vector<double> numbers() {
    std::vector<double> all(count());
    for (double& one : all) one = number();
    return all;
  }

 private:
  std::ifstream file_;
};

struct Place {
  enum Kind { kSlot, kHeader, kBuffer, kScratch, kCard } kind;
  size_t rank;
  size_t buffer;
};

struct Program {
  std::vector<double> code;
  std::vector<double> sequence_operands;
  std::vector<uint8_t> card;
  std::vector<Place> places;
};

struct Operation {
  bool sums;
  size_t bytes[kBuffers];
  size_t signals, signals_offset;
  std::vector<Program> programs;
};

/// Allocates zeroed memory on a cache line of its own.
uint8_t* lines(size_t bytes) {
  const size_t whole = (bytes + kLine) / kLine * kLine;
  auto* memory = static_cast<uint8_t*>(std::aligned_alloc(kLine, whole));
  if (memory == nullptr) die("no memory");
  std::memset(memory, 0, whole);
  return memory;
}

struct Block {
  uint8_t *header, *slots[kSlots], *staging;
};

class Rank {
 public:
  Rank(size_t rank, const std::vector<Operation>& operations, const std::vector<Block>& blocks, const std::vector<std::vector<uint8_t*>>& buffers)
      : rank_(rank), operations_(operations), blocks_(blocks), buffers_(buffers), words_(8) {}

  /// Runs operation by operation, one slot after the other.
  void run(size_t rounds) {
    for (size_t round = 0, sequence = 0; round < rounds; round++) {
      for (size_t k = 0; k < operations_.size(); k++, sequence++) run_one(k, sequence);
    }
  }

 private:
  void run_one(size_t k, size_t sequence) {
    const Operation& operation = operations_[k];
    Program program = operation.programs[rank_];
    for (const double operand : program.sequence_operands) program.code[static_cast<size_t>(operand)] = static_cast<double>(sequence + 1);
    const uint32_t number = static_cast<uint32_t>(sequence);
    std::memcpy(program.card.data(), &number, sizeof number);
    uint8_t* const slot = blocks_[rank_].slots[sequence % kSlots];
    std::vector<Segment> segments;
    for (const Place& place : program.places) segments.push_back(segment(place, operation, k, sequence, program));
    words_[0] = 0;      // pc
    words_[2] = 20000;  // spin
    words_[3] = 1;      // yields
    for (;;) {
      const Status status = shoal::run_steps(program.code.data(), program.code.size(), segments, Registers{words_.data(), words_.size()});
      if (status == Status::kDone) break;
      if (status != Status::kWaiting) die(status == Status::kDiffers ? "contracts differ" : "a program failed");
    }
    for (size_t signal = 0; signal < operation.signals; signal++) {
      __atomic_store_n(reinterpret_cast<uint32_t*>(slot + operation.signals_offset + signal * kLine), 0, __ATOMIC_RELAXED);
    }
  }

  Segment segment(const Place& place, const Operation& operation, size_t k, size_t sequence, Program& program) const {
    const Block& block = blocks_[place.rank];
    switch (place.kind) {
      case Place::kSlot: return {block.slots[sequence % kSlots], static_cast<size_t>(block.slots[1] - block.slots[0])};
      case Place::kHeader: return {block.header, 256};
      case Place::kBuffer: return {buffers_[k][place.rank * kBuffers + place.buffer], operation.bytes[place.buffer]};
      case Place::kScratch: return {block.staging, SIZE_MAX / 2};
      case Place::kCard: return {program.card.data(), program.card.size()};
    }
    die("a segment of no kind");
  }

  const size_t rank_;
  const std::vector<Operation>& operations_;
  const std::vector<Block>& blocks_;
  const std::vector<std::vector<uint8_t*>>& buffers_;
  std::vector<double> words_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) die("usage: step-threads CASES");
  Reader reader(argv[1]);
  const size_t ranks = reader.count(), header_bytes = reader.count(), slot_bytes = reader.count(), staging_bytes = reader.count();
  const size_t rounds = reader.count();
  std::vector<Operation> operations(reader.count());
  for (Operation& operation : operations) {
    operation.sums = reader.count() != 0;
    for (size_t& bytes : operation.bytes) bytes = reader.count();
    operation.signals = reader.count();
    operation.signals_offset = reader.count();
    for (size_t rank = 0; rank < ranks; rank++) {
      Program program;
      program.code = reader.numbers();
      program.sequence_operands = reader.numbers();
      for (const double byte : reader.numbers()) program.card.push_back(static_cast<uint8_t>(byte));
      program.places.resize(reader.count());
      for (Place& place : program.places) place = {static_cast<Place::Kind>(reader.count()), reader.count(), reader.count()};
      operation.programs.push_back(program);
    }
  }
  std::vector<Block> blocks;
  for (size_t rank = 0; rank < ranks; rank++) {
    uint8_t* const memory = lines(header_bytes + kSlots * slot_bytes);
    blocks.push_back({memory, {memory + header_bytes, memory + header_bytes + slot_bytes}, lines(staging_bytes)});
  }
  // Every operation has buffers of its own, filled once: int32, the number of the rank plus one.
  std::vector<std::vector<uint8_t*>> buffers;
  for (const Operation& operation : operations) {
    std::vector<uint8_t*> of_ranks;
    for (size_t rank = 0; rank < ranks; rank++) {
      for (const size_t bytes : operation.bytes) {
        auto* const words = reinterpret_cast<int32_t*>(of_ranks.emplace_back(lines(bytes)));
        for (size_t k = 0; k < bytes / sizeof(int32_t); k++) words[k] = static_cast<int32_t>(rank + 1);
      }
    }
    buffers.push_back(of_ranks);
  }
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks; rank++) {
    threads.emplace_back([&, rank] { Rank(rank, operations, blocks, buffers).run(rounds); });
  }
  for (std::thread& thread : threads) thread.join();
  // After an all-reduce in place every rank holds the sum, times the ranks for each later round; the same on all of them.
  for (size_t k = 0; k < operations.size(); k++) {
    const Operation& operation = operations[k];
    if (!operation.sums) continue;
    uint32_t expected = static_cast<uint32_t>(ranks * (ranks + 1) / 2);
    for (size_t round = 1; round < rounds; round++) expected *= static_cast<uint32_t>(ranks);
    for (size_t rank = 0; rank < ranks; rank++) {
      const auto* words = reinterpret_cast<const uint32_t*>(buffers[k][rank * kBuffers]);
      for (size_t i = 0; i < operation.bytes[0] / sizeof(uint32_t); i++) {
        if (words[i] != expected) die("a wrong sum");
      }
    }
  }
  std::printf("%zu ranks, %zu rounds of %zu operations: ended, sums right\n", ranks, rounds, operations.size());
  return 0;
}
