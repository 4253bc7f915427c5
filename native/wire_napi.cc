// The functions of the addon that make, drive and end wires (wire.h).
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "wire.h"

namespace shoal {
namespace wire {
namespace {

constexpr int kSocketBufferBytes = 256 * 1024;

/// Reads a set of peers: a bit per peer, by position.
bool get_bits(napi_env env, napi_value value, uint32_t& out) { return get_whole(env, value, 0, UINT32_MAX, out); }

/// Reads a time to wait: any length, but a number.
bool get_duration(napi_env env, napi_value value, double& out) { return get(env, value, out) && out >= 0; }

/// createWire(fds: number[], memory, ownSlots: Uint8Array[2], peerSlots: Uint8Array[2 per peer], scratch: Uint8Array[2], layout:
/// Float64Array of announcedOffset, payloadMax, signalsOffset, signalCount, putMax). The caller keeps all views alive and attached;
/// the descriptors are the wire's from now on.
napi_value create_wire(napi_env env, napi_callback_info info) {
  napi_value values[6], element, handle;
  Doubles layout;
  uint32_t scratch_count = 0;
  uint32_t count = 0, own_count = 0, slot_count = 0;
  Bytes memory, view{nullptr, 0};
  if (!arguments(env, info, values) || napi_get_array_length(env, values[0], &count) != napi_ok || !get(env, values[1], memory) ||
      napi_get_array_length(env, values[2], &own_count) != napi_ok || napi_get_array_length(env, values[3], &slot_count) != napi_ok ||
      napi_get_array_length(env, values[4], &scratch_count) != napi_ok || !get(env, values[5], layout) || layout.size != 5 ||
      own_count != kTurns || count > kPeersMax || slot_count != kTurns * count || scratch_count != kTurns) {
    return fail_arguments(env);
  }
  for (size_t k = 0; k < layout.size; k++) {
    if (!(layout.data[k] >= 0 && layout.data[k] < 1e9)) return fail_arguments(env);
  }
  auto* wire = new Wire();
  wire->announced_offset = static_cast<size_t>(layout.data[0]);
  wire->payload_max = static_cast<size_t>(layout.data[1]);
  wire->signals_offset = static_cast<size_t>(layout.data[2]);
  wire->signal_count = static_cast<uint32_t>(layout.data[3]);
  wire->put_max = static_cast<size_t>(layout.data[4]);
  const size_t slot_least = wire->announced_offset + wire->payload_max;
  const size_t own_least = wire->signals_offset + static_cast<size_t>(wire->signal_count) * kSignalBytes;
  const size_t box = inbox_bytes_of(wire->payload_max), each = peer_bytes_of(wire->payload_max, wire->put_max);
  bool valid = memory.size >= count * each && reinterpret_cast<uintptr_t>(memory.data) % kLine == 0 && wire->announced_offset % 4 == 0;
  for (uint32_t turn = 0; valid && turn < kTurns; turn++) {
    valid = napi_get_element(env, values[2], turn, &element) == napi_ok && get(env, element, view) && view.size >= slot_least && view.size >= own_least;
    wire->own[turn] = view.data;
    valid = valid && napi_get_element(env, values[4], turn, &element) == napi_ok && get(env, element, wire->buffers[turn][kScratch]);
  }
  for (uint32_t k = 0; valid && k < count; k++) {
    int fd;
    uint8_t* base = memory.data + k * each;
    valid = napi_get_element(env, values[0], k, &element) == napi_ok && get_descriptor(env, element, fd) && fd >= 0;
    if (!valid) break;
    uint8_t* sealed = sealed_box_of(base, wire->payload_max, wire->put_max);
    Peer peer{fd, reinterpret_cast<PeerState*>(base), base + kLine, base + kLine + box, {nullptr, nullptr}, records::link_of(fd), sealed};
    for (uint32_t turn = 0; valid && turn < kTurns; turn++) {
      valid = napi_get_element(env, values[3], k * kTurns + turn, &element) == napi_ok && get(env, element, view) && view.size >= slot_least &&
              reinterpret_cast<uintptr_t>(view.data) % 4 == 0;
      peer.slots[turn] = view.data;
    }
    if (valid) wire->peers.push_back(peer);
  }
  const auto finalize = [](napi_env, void* data, void*) {
    auto* each_wire = static_cast<Wire*>(data);
    each_wire->close_all();
    delete each_wire;
  };
  if (!valid || napi_create_external(env, wire, finalize, nullptr, &handle) != napi_ok) {
    delete wire;
    return fail_arguments(env);
  }
  return handle;
}

/// wireMemoryBytes(peers, payloadMax, putMax)
napi_value wire_memory_bytes(napi_env env, napi_callback_info info) {
  napi_value values[3], result;
  size_t peers, payload, put;
  if (!arguments(env, info, values) || !get_index(env, values[0], 1e9, peers) || !get_index(env, values[1], 1e9, payload) ||
      !get_index(env, values[2], 1e9, put)) {
    return fail_arguments(env);
  }
  const double bytes = static_cast<double>(peers) * static_cast<double>(peer_bytes_of(payload, put));
  return napi_create_double(env, bytes, &result) == napi_ok ? result : nullptr;
}

/// wireAnnounce(wire, turn, bytes, to): sends the own slot's first bytes, from the announcement on, to the peers whose bits are set.
napi_value wire_announce(napi_env env, napi_callback_info info) {
  napi_value values[4];
  Wire* wire;
  uint32_t turn, to;
  double bytes;
  if (!arguments(env, info, values) || !get_external(env, values[0], wire) || !get_index(env, values[1], kTurns, turn) ||
      !get(env, values[2], bytes) || !get_bits(env, values[3], to) || !wire->can_announce(bytes)) {
    return fail_arguments(env);
  }
  wire->announce(turn, static_cast<size_t>(bytes), to);
  return nullptr;
}

/// wireBind(wire, turn, data, output): where writes for them go; empty for what the operation has not.
napi_value wire_bind(napi_env env, napi_callback_info info) {
  napi_value values[4];
  Wire* wire;
  uint32_t turn;
  Bytes data, output;
  if (!arguments(env, info, values) || !get_external(env, values[0], wire) || !get_index(env, values[1], kTurns, turn) ||
      !get(env, values[2], data) || !get(env, values[3], output)) {
    return fail_arguments(env);
  }
  wire->buffers[turn][kData] = data;
  wire->buffers[turn][kOutput] = output;
  return nullptr;
}

/// wirePut(wire, peer, turn, buffer, offset, bytes, targetBuffer, targetOffset, signal, announced): the peer's position among the
/// others; `announced`: bytes of the own slot's announcement that go before, 0: none.
napi_value wire_put(napi_env env, napi_callback_info info) {
  constexpr size_t kNumbers = 9;
  napi_value values[kNumbers + 1];
  std::array<uint64_t, kNumbers> whole;
  Wire* wire;
  if (!arguments(env, info, values) || !get_external(env, values[0], wire)) return fail_arguments(env);
  for (size_t k = 0; k < kNumbers; k++) {
    if (!get_index(env, values[k + 1], 1e15, whole[k])) return fail_arguments(env);
  }
  const auto [peer, turn, buffer, offset, bytes, target_buffer, target_offset, signal, announced] = whole;
  if (peer >= wire->peers.size() || turn >= kTurns || buffer >= kBuffers || target_buffer >= kBuffers || bytes > wire->put_max || signal > UINT32_MAX ||
      (announced != 0 && !wire->can_announce(static_cast<double>(announced)))) {
    return fail_arguments(env);
  }
  const Bytes& source = wire->buffers[turn][buffer];
  if (bytes > 0 && (offset > source.size || bytes > source.size - offset)) return fail_arguments(env);
  const Header header{static_cast<uint32_t>(bytes),         static_cast<uint16_t>(turn), kPut, static_cast<uint32_t>(signal),
                      static_cast<uint32_t>(target_buffer), target_offset};
  wire->put(wire->peers[peer], header, bytes > 0 ? source.data + offset : nullptr, announced);
  return nullptr;
}

/// wireProgress(wire, from, spinNs): from the peers whose bits are set. 1 something has come, 0 not yet, −1 one of them has ended.
napi_value wire_progress(napi_env env, napi_callback_info info) {
  napi_value values[3], result;
  Wire* wire;
  uint32_t from;
  double spin_ns;
  if (!arguments(env, info, values) || !get_external(env, values[0], wire) || !get_bits(env, values[1], from) ||
      !get_duration(env, values[2], spin_ns)) {
    return fail_arguments(env);
  }
  const int came = wire->poll_any(from, spin_ns);
  wire->arm();
  return napi_create_int32(env, came, &result) == napi_ok ? result : nullptr;
}

/// wireUnsent(wire): whether the kernel has not taken all that was sent.
napi_value wire_unsent(napi_env env, napi_callback_info info) {
  napi_value values[1], result;
  Wire* wire;
  if (!arguments(env, info, values) || !get_external(env, values[0], wire)) return fail_arguments(env);
  return napi_get_boolean(env, wire->unsent(), &result) == napi_ok ? result : nullptr;
}

/// wirePoll(wire, turn, value, spinNs): 1 all there, 0 not yet, −1 a missing peer's socket has ended.
napi_value wire_poll(napi_env env, napi_callback_info info) {
  napi_value values[4], result;
  Wire* wire;
  uint32_t turn;
  uint64_t value;
  double spin_ns;
  if (!arguments(env, info, values) || !get_external(env, values[0], wire) || !get_index(env, values[1], kTurns, turn) ||
      !get_index(env, values[2], 0x1p53, value) || !get_duration(env, values[3], spin_ns)) {
    return fail_arguments(env);
  }
  const int there = wire->poll_until(turn, static_cast<uint32_t>(value), spin_ns);
  wire->arm();
  return napi_create_int32(env, there, &result) == napi_ok ? result : nullptr;
}

/// closeWire(wire)
napi_value close_wire(napi_env env, napi_callback_info info) {
  napi_value values[1];
  Wire* wire;
  if (!arguments(env, info, values) || !get_external(env, values[0], wire)) return fail_arguments(env);
  wire->close_all();
  wire->peers.clear();
  wire->epoll_fd = -1;
  return nullptr;
}

/// takeSocket(fd): a descriptor of our own on the same socket, which sends at once and has room for what a lane sends.
napi_value take_socket(napi_env env, napi_callback_info info) {
  napi_value values[1], result;
  int fd;
  if (!arguments(env, info, values) || !get_descriptor(env, values[0], fd)) return fail_arguments(env);
  const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return fail(env, "EBADF", "cannot duplicate the socket");
  const int on = 1;
  // Without these options, which the kernel may refuse, it is slower but not wrong.
  setsockopt(own, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(own, SOL_SOCKET, SO_SNDBUF, &kSocketBufferBytes, sizeof kSocketBufferBytes);
  records::retain_link(own);
  return napi_create_int32(env, own, &result) == napi_ok ? result : nullptr;
}

/// closeSocket(fd), for one that no wire took.
napi_value close_socket(napi_env env, napi_callback_info info) {
  napi_value values[1];
  int fd;
  if (!arguments(env, info, values) || !get_descriptor(env, values[0], fd) || fd < 0) return fail_arguments(env);
  records::release_link(fd);
  close(fd);
  return nullptr;
}

}  // namespace
}  // namespace wire

void export_wires(napi_env env, napi_value exports) {
  using namespace wire;
  set_function(env, exports, "wireMemoryBytes", wire_memory_bytes);
  set_function(env, exports, "takeSocket", take_socket);
  set_function(env, exports, "closeSocket", close_socket);
  set_function(env, exports, "createWire", create_wire);
  set_function(env, exports, "wireBind", wire_bind);
  set_function(env, exports, "wireAnnounce", wire_announce);
  set_function(env, exports, "wirePut", wire_put);
  set_function(env, exports, "wireProgress", wire_progress);
  set_function(env, exports, "wireUnsent", wire_unsent);
  set_function(env, exports, "wirePoll", wire_poll);
  set_function(env, exports, "closeWire", close_wire);
}

}  // namespace shoal
