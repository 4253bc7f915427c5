// The transfers that JavaScript can start.
#pragma once
#include <cmath>

#include "mpi_runtime.h"

namespace shoal::mpi {

/// Sends one message from the caller's memory, or from a copy.
class SendTask final : public Task {
 public:
  SendTask(InboxPtr inbox, double id, int peer, int tag, const uint8_t* data, size_t bytes, bool copies);
  int start(Runtime& runtime, Request& request) override;

 private:
  const int peer_;
  const int tag_;
  const uint8_t* data_;
  const size_t bytes_;
  std::unique_ptr<uint8_t[]> copy_;
};

/// Collectives by code: the same order as in src/call/contract.ts.
enum class Collective : int { kAllReduce, kBroadcast, kReduce, kAllGather, kGather, kScatter, kReduceScatter, kAllToAll, kBarrier, kCount };

struct CollectiveCall {
  Collective kind;
  double group;
  size_t dtype;
  size_t op;
  int root;
  /// Null: this rank has no input or no output. For all-reduce, broadcast and reduce `input` is the data; where the result
  /// replaces it both are the same.
  const uint8_t* input;
  size_t input_bytes;
  uint8_t* output;
  size_t output_bytes;
  /// Numbers of elements that this rank gives to, and gets from, each rank; as many as the group has ranks, or none. An
  /// all-to-all with one number is even over all ranks.
  std::vector<int> input_counts;
  std::vector<int> output_counts;
};

/// A collective of Open MPI. All ranks of a group start its collectives in the same order.
class CollectiveTask final : public Task {
 public:
  CollectiveTask(InboxPtr inbox, double id, CollectiveCall call);
  int start(Runtime& runtime, Request& request) override;

 private:
  CollectiveCall call_;
  std::vector<int> input_offsets_;
  std::vector<int> output_offsets_;
};

/// Frees a group's communicator, in order with its collectives.
class FreeTask final : public Task {
 public:
  FreeTask(InboxPtr inbox, double group) : Task(std::move(inbox), NAN, false), group_(group) {}
  int start(Runtime& runtime, Request&) override {
    runtime.free_communicator(inbox, group_);
    return kSuccess;
  }

 private:
  const double group_;
};

}  // namespace shoal::mpi
