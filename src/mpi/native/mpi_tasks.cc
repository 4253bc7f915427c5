#include "mpi_tasks.h"

#include <cmath>
#include <cstring>

#include "kernels.h"

namespace shoal::mpi {
namespace {

constexpr int kErrorComm = 5;

Datatype type_of(const Api& api, size_t dtype) {
  switch (dtype) {
    case kF64: return api.double_object;
    case kF32: return api.float_object;
    case kI64: return api.int64_t_object;
    case kI32: return api.int32_t_object;
    case kI16: return api.int16_t_object;
    case kI8: return api.int8_t_object;
    case kU32: return api.uint32_t_object;
    // 16-bit floats are moved as they are; they are widened before they are added.
    case kF16:
    case kBF16:
    case kU16: return api.uint16_t_object;
    default: return api.uint8_t_object;
  }
}

std::vector<int> offsets(const std::vector<int>& counts) {
  std::vector<int> sums(counts.size());
  for (size_t k = 1; k < counts.size(); k++) sums[k] = sums[k - 1] + counts[k - 1];
  return sums;
}

bool even(const std::vector<int>& counts) {
  for (const int count : counts) {
    if (count != counts[0]) return false;
  }
  return true;
}

/// Target of pointers to empty buffers: some functions of MPI compare or check them.
uint8_t no_input[64];
uint8_t no_output[64];

}  // namespace

SendTask::SendTask(InboxPtr inbox, double id, int peer, int tag, const uint8_t* data, size_t bytes, bool copies)
    : Task(std::move(inbox), id, !copies), peer_(peer), tag_(tag), data_(data), bytes_(bytes) {
  if (!copies) return;
  copy_.reset(new uint8_t[bytes + 1]);
  if (bytes > 0) std::memcpy(copy_.get(), data, bytes);
  data_ = copy_.get();
}

int SendTask::start(Runtime& runtime, Request& request) {
  const Api& api = runtime.api();
  return api.Isend(data_, static_cast<int>(bytes_), api.byte_object, peer_, tag_, runtime.messages(), &request);
}

CollectiveTask::CollectiveTask(InboxPtr inbox, double id, CollectiveCall call)
    : Task(std::move(inbox), id, true), call_(std::move(call)), input_offsets_(offsets(call_.input_counts)), output_offsets_(offsets(call_.output_counts)) {}

int CollectiveTask::start(Runtime& runtime, Request& request) {
  const Api& api = runtime.api();
  const Comm comm = runtime.communicator(inbox, call_.group);
  if (comm == nullptr) return kErrorComm;
  const Datatype type = type_of(api, call_.dtype);
  const size_t width = kElementBytes[call_.dtype];
  // Two addresses: where both are the same, Open MPI takes a call as one in place, and waits for messages that nobody sends.
  const void* in = call_.input == nullptr || call_.input_bytes == 0 ? no_input : call_.input;
  void* out = call_.output == nullptr || call_.output_bytes == 0 ? no_output : call_.output;
  const int in_count = static_cast<int>(call_.input_bytes / width);
  const int out_count = static_cast<int>(call_.output_bytes / width);
  const auto& in_counts = call_.input_counts;
  const auto& out_counts = call_.output_counts;
  const auto operation = [&] { return runtime.op(call_.dtype, call_.op); };
  switch (call_.kind) {
    case Collective::kBarrier: return api.Ibarrier(comm, &request);
    case Collective::kBroadcast: return api.Ibcast(out, out_count, type, call_.root, comm, &request);
    case Collective::kAllReduce: return api.Iallreduce(in_place(), out, out_count, type, operation(), comm, &request);
    case Collective::kReduce:
      if (call_.output != nullptr) return api.Ireduce(in_place(), out, out_count, type, operation(), call_.root, comm, &request);
      return api.Ireduce(in, nullptr, in_count, type, operation(), call_.root, comm, &request);
    case Collective::kAllGather:
      if (even(out_counts)) return api.Iallgather(in, in_count, type, out, in_count, type, comm, &request);
      return api.Iallgatherv(in, in_count, type, out, out_counts.data(), output_offsets_.data(), type, comm, &request);
    case Collective::kGather:
      if (even(out_counts)) return api.Igather(in, in_count, type, out, in_count, type, call_.root, comm, &request);
      return api.Igatherv(in, in_count, type, out, out_counts.data(), output_offsets_.data(), type, call_.root, comm, &request);
    case Collective::kScatter:
      if (even(in_counts)) return api.Iscatter(in, out_count, type, out, out_count, type, call_.root, comm, &request);
      return api.Iscatterv(in, in_counts.data(), input_offsets_.data(), type, out, out_count, type, call_.root, comm, &request);
    case Collective::kReduceScatter: return api.Ireduce_scatter(in, out, in_counts.data(), type, operation(), comm, &request);
    case Collective::kAllToAll:
      // This rank's own counts may be even when those of others are not, so the caller decides.
      if (in_counts.size() == 1) {
        return api.Ialltoall(in, in_counts[0], type, out, in_counts[0], type, comm, &request);
      }
      return api.Ialltoallv(in, in_counts.data(), input_offsets_.data(), type, out, out_counts.data(), output_offsets_.data(), type, comm, &request);
    default: return kErrorComm;
  }
}

}  // namespace shoal::mpi
