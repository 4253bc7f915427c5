// The interface of MPI to JavaScript: endpoints, each with its events delivered in batches on the thread that opened it.
//
//   endpoint ── shared ──▶ Inbox ◀── MPI thread
//      └── threadsafe function: one call per batch
#include "mpi.h"

#include <cmath>
#include <cstring>

#include "kernels.h"
#include "mpi_tasks.h"
#include "napi_args.h"

namespace shoal {
namespace {

using mpi::Event;
using mpi::EventKind;
using mpi::Runtime;

/// Fields of an event: kind, a, b, and data or text.
constexpr uint32_t kFields = 4;
constexpr const char* kNotHandedOver = "an event of MPI cannot be handed over";
/// Smaller data is copied into memory of JavaScript's own: an external buffer costs more.
constexpr size_t kExternalBytes = 64 * 1024;
/// Longest wait of a thread that ends with transfers under way.
constexpr int kLeaveMs = 2000;

struct Endpoint {
  mpi::InboxPtr inbox;
  napi_threadsafe_function deliver = nullptr;
  bool open = true;

  void close(int timeout_ms) {
    if (!open) return;
    open = false;
    Runtime::instance().close(inbox, timeout_ms);
    napi_release_threadsafe_function(deliver, napi_tsfn_abort);
  }
};

void free_data(napi_env, void* data, void*) { std::free(data); }

napi_value data_of(napi_env env, Event& event) {
  napi_value buffer, view;
  void* target = nullptr;
  if (event.bytes >= kExternalBytes) {
    uint8_t* data = event.data.release();
    if (napi_create_external_arraybuffer(env, data, event.bytes, free_data, nullptr, &buffer) != napi_ok) {
      std::free(data);
      return nullptr;
    }
  } else {
    if (napi_create_arraybuffer(env, event.bytes, &target, &buffer) != napi_ok) return nullptr;
    if (event.bytes > 0) std::memcpy(target, event.data.get(), event.bytes);
  }
  return napi_create_typedarray(env, napi_uint8_array, event.bytes, buffer, 0, &view) == napi_ok ? view : nullptr;
}

/// Delivers events on the endpoint's thread. `env` is null when that thread is ending.
void call_back(napi_env env, napi_value callback, void* context, void*) {
  auto* endpoint = static_cast<Endpoint*>(context);
  if (env == nullptr || callback == nullptr || !endpoint->open) return;
  std::vector<Event> events = endpoint->inbox->take();
  napi_value batch, self;
  if (events.empty() || napi_create_array_with_length(env, events.size() * kFields, &batch) != napi_ok || napi_get_undefined(env, &self) != napi_ok) return;
  uint32_t at = 0;
  for (Event& event : events) {
    napi_value fields[kFields] = {};
    const size_t bytes = event.bytes;
    expect(env, napi_create_int32(env, static_cast<int32_t>(event.kind), &fields[0]), kNotHandedOver);
    expect(env, napi_create_double(env, event.a, &fields[1]), kNotHandedOver);
    expect(env, napi_create_double(env, event.b, &fields[2]), kNotHandedOver);
    if (event.kind == EventKind::kMessage) fields[3] = data_of(env, event);
    else expect(env, napi_create_string_utf8(env, event.text.c_str(), event.text.size(), &fields[3]), kNotHandedOver);
    if (bytes > 0) Runtime::instance().consumed(bytes);
    for (napi_value field : fields) {
      // An event missing from the batch would be a lost message, so a failure throws.
      expect(env, field == nullptr ? napi_generic_failure : napi_set_element(env, batch, at++, field), kNotHandedOver);
    }
  }
  bool pending = false;
  if (napi_is_exception_pending(env, &pending) == napi_ok && !pending) napi_call_function(env, self, callback, 1, &batch, nullptr);
  // No JavaScript called this function, so nobody could catch the exception.
  napi_value thrown;
  if (napi_is_exception_pending(env, &pending) == napi_ok && pending && napi_get_and_clear_last_exception(env, &thrown) == napi_ok) {
    napi_fatal_exception(env, thrown);
  }
}

void leave(void* data) { static_cast<Endpoint*>(data)->close(kLeaveMs); }

/// mpiUnavailable(): why there is no usable MPI here; '' when there is.
napi_value unavailable(napi_env env, napi_callback_info) {
  const char* why = "";
  napi_value result;
  const bool usable = mpi::load(why) != nullptr;
  return napi_create_string_utf8(env, usable ? "" : why, NAPI_AUTO_LENGTH, &result) == napi_ok ? result : nullptr;
}

/// mpiOpen(onEvents): a handle.
napi_value open(napi_env env, napi_callback_info info) {
  napi_value values[1], name, handle;
  const char* why = "";
  const mpi::Api* api = mpi::load(why);
  if (!arguments(env, info, values)) return fail_arguments(env);
  if (api == nullptr) return fail(env, "ENOSYS", why);
  auto* endpoint = new Endpoint;
  if (napi_create_string_utf8(env, "shoal-mpi", NAPI_AUTO_LENGTH, &name) != napi_ok ||
      napi_create_threadsafe_function(env, values[0], nullptr, name, 0, 1, nullptr, nullptr, endpoint, call_back, &endpoint->deliver) != napi_ok) {
    delete endpoint;
    return fail_arguments(env);
  }
  const auto wake = [](void* user) { napi_call_threadsafe_function(static_cast<napi_threadsafe_function>(user), nullptr, napi_tsfn_nonblocking); };
  endpoint->inbox = std::make_shared<mpi::Inbox>(wake, endpoint->deliver);
  const auto finalize = [](napi_env env, void* data, void*) {
    auto* endpoint = static_cast<Endpoint*>(data);
    napi_remove_env_cleanup_hook(env, leave, endpoint);
    endpoint->close(kLeaveMs);
    delete endpoint;
  };
  if (napi_create_external(env, endpoint, finalize, nullptr, &handle) != napi_ok) {
    endpoint->open = false;
    napi_release_threadsafe_function(endpoint->deliver, napi_tsfn_abort);
    return fail(env, "EINVAL", "napi_create_external failed");
  }
  if (napi_add_env_cleanup_hook(env, leave, endpoint) != napi_ok) {
    endpoint->open = false;
    return fail(env, "EINVAL", "napi_add_env_cleanup_hook failed");
  }
  Runtime::instance().open(api, endpoint->inbox);
  return handle;
}

bool get(napi_env env, napi_value value, Endpoint*& out) { return get_external(env, value, out) && out->open; }

bool get(napi_env env, napi_value value, int& out) { return get_whole(env, value, INT32_MIN, INT32_MAX, out); }

/// Reads the numbers of a Uint8Array over an Int32Array.
bool get(napi_env env, napi_value value, std::vector<int>& out) {
  Bytes bytes;
  if (!shoal::get(env, value, bytes) || bytes.size % sizeof(int) != 0) return false;
  out.resize(bytes.size / sizeof(int));
  if (bytes.size > 0) std::memcpy(out.data(), bytes.data, bytes.size);
  return true;
}

/// mpiClose(handle, timeoutMs). Waits for transfers that use the caller's memory.
napi_value close(napi_env env, napi_callback_info info) {
  napi_value values[2];
  Endpoint* endpoint;
  int timeout_ms;
  if (!arguments(env, info, values) || !get_external(env, values[0], endpoint) || !get(env, values[1], timeout_ms)) return fail_arguments(env);
  endpoint->close(timeout_ms);
  return nullptr;
}

/// mpiRef(handle, on): whether the endpoint keeps its thread's event loop alive.
napi_value ref(napi_env env, napi_callback_info info) {
  napi_value values[2];
  Endpoint* endpoint;
  bool on;
  if (!arguments(env, info, values) || !get(env, values[0], endpoint) || !shoal::get(env, values[1], on)) return fail_arguments(env);
  if (on) napi_ref_threadsafe_function(env, endpoint->deliver);
  else napi_unref_threadsafe_function(env, endpoint->deliver);
  return nullptr;
}

/// mpiClaim(handle, port, bytesMax): whether the port was free.
napi_value claim(napi_env env, napi_callback_info info) {
  napi_value values[3], result;
  Endpoint* endpoint;
  int port;
  size_t bytes_max;
  if (!arguments(env, info, values) || !get(env, values[0], endpoint) || !get(env, values[1], port) || !get_index(env, values[2], 0x1p53, bytes_max)) {
    return fail_arguments(env);
  }
  const bool free = Runtime::instance().claim(endpoint->inbox, port, bytes_max);
  return napi_get_boolean(env, free, &result) == napi_ok ? result : nullptr;
}

/// mpiRelease(handle, port)
napi_value release(napi_env env, napi_callback_info info) {
  napi_value values[2];
  Endpoint* endpoint;
  int port;
  if (!arguments(env, info, values) || !get(env, values[0], endpoint) || !get(env, values[1], port)) return fail_arguments(env);
  Runtime::instance().release(endpoint->inbox, port);
  return nullptr;
}

/// mpiSend(handle, id, peer, tag, bytes, copies)
napi_value send(napi_env env, napi_callback_info info) {
  napi_value values[6];
  Endpoint* endpoint;
  double id;
  int peer, tag;
  Bytes bytes;
  bool copies;
  if (!arguments(env, info, values) || !get(env, values[0], endpoint) || !shoal::get(env, values[1], id) || !get(env, values[2], peer) ||
      !get(env, values[3], tag) || !shoal::get(env, values[4], bytes) || !shoal::get(env, values[5], copies) || bytes.size > INT32_MAX) {
    return fail_arguments(env);
  }
  Runtime::instance().submit(std::make_unique<mpi::SendTask>(endpoint->inbox, id, peer, tag, bytes.data, bytes.size, copies));
  return nullptr;
}

/// mpiGroup(handle, id, group, ranks: bytes of Int32)
napi_value group(napi_env env, napi_callback_info info) {
  napi_value values[4];
  Endpoint* endpoint;
  double id, number;
  std::vector<int> ranks;
  if (!arguments(env, info, values) || !get(env, values[0], endpoint) || !shoal::get(env, values[1], id) || !shoal::get(env, values[2], number) ||
      !get(env, values[3], ranks)) {
    return fail_arguments(env);
  }
  Runtime::instance().create_communicator(endpoint->inbox, id, number, std::move(ranks));
  return nullptr;
}

/// mpiFreeGroup(handle, group)
napi_value free_group(napi_env env, napi_callback_info info) {
  napi_value values[2];
  Endpoint* endpoint;
  double number;
  if (!arguments(env, info, values) || !get(env, values[0], endpoint) || !shoal::get(env, values[1], number)) return fail_arguments(env);
  Runtime::instance().submit(std::make_unique<mpi::FreeTask>(endpoint->inbox, number));
  return nullptr;
}

/// mpiCollective(handle, id, group, kind, dtype, op, root, input, output, inputCounts, outputCounts): views and bytes of
/// Int32; an empty view is nothing.
napi_value collective(napi_env env, napi_callback_info info) {
  napi_value values[11];
  Endpoint* endpoint;
  double id;
  mpi::CollectiveCall call{};
  int kind, dtype, op;
  Bytes input, output;
  if (!arguments(env, info, values) || !get(env, values[0], endpoint) || !shoal::get(env, values[1], id) || !shoal::get(env, values[2], call.group) ||
      !get(env, values[3], kind) || !get(env, values[4], dtype) || !get(env, values[5], op) || !get(env, values[6], call.root) ||
      !shoal::get(env, values[7], input) || !shoal::get(env, values[8], output) || !get(env, values[9], call.input_counts) ||
      !get(env, values[10], call.output_counts) || kind < 0 || kind >= static_cast<int>(mpi::Collective::kCount) || dtype < 0 ||
      dtype >= static_cast<int>(kDTypes) || op < 0 || op >= static_cast<int>(kOps)) {
    return fail_arguments(env);
  }
  call.kind = static_cast<mpi::Collective>(kind);
  call.dtype = static_cast<size_t>(dtype);
  call.op = static_cast<size_t>(op);
  call.input = input.size == 0 ? nullptr : input.data;
  call.input_bytes = input.size;
  call.output = output.size == 0 ? nullptr : output.data;
  call.output_bytes = output.size;
  Runtime::instance().submit(std::make_unique<mpi::CollectiveTask>(endpoint->inbox, id, std::move(call)));
  return nullptr;
}

}  // namespace

void export_mpi(napi_env env, napi_value exports) {
  set_function(env, exports, "mpiUnavailable", unavailable);
  set_function(env, exports, "mpiOpen", open);
  set_function(env, exports, "mpiClose", close);
  set_function(env, exports, "mpiRef", ref);
  set_function(env, exports, "mpiClaim", claim);
  set_function(env, exports, "mpiRelease", release);
  set_function(env, exports, "mpiSend", send);
  set_function(env, exports, "mpiGroup", group);
  set_function(env, exports, "mpiFreeGroup", free_group);
  set_function(env, exports, "mpiCollective", collective);
}

}  // namespace shoal
