// The wire of an express: one stream socket to each other rank, on which announcements travel, mailbox and all, and writes into the
// memory of an operation, straight between the threads that run it. What is announced is put where the peer's slots would be if
// they could be mapped; what is written goes where it belongs, and then raises its signal.
//
//    message   0 payload bytes u32   4 turn u16   6 kind u16   8 signal u32   12 buffer u32   16 offset u64   24 payload
//      announcement   the own slot from its announcement on ─▶ mirror; its first word is stored last, released
//      put            bytes ─▶ offset of the target's data (0), output (1) or scratch (2); then its signal rises by one. The first
//                     to a peer may have the announcement before it, in the same packet
//
// Two threads of a process have each their own wire on the same sockets and the same memory, and use them in turn, never at once:
// what is half received or half sent lies in the memory, so that either can go on. The descriptors are the wire's own.
// Sending never blocks: what the kernel does not take stays in the outbox, which holds what an operation sends to a peer.
#include "lane_wire.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

#include <array>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "napi_args.h"

namespace shoal {
namespace {

constexpr uint32_t kTurns = 2;
constexpr size_t kHeaderBytes = 24;
constexpr uint32_t kSignalBytes = 64;
enum Kind : uint16_t { kAnnouncement, kPut };
enum BufferCode : uint32_t { kData, kOutput, kScratch, kBuffers };

struct Header {
  uint32_t bytes;
  uint16_t turn;
  uint16_t kind;
  uint32_t signal;
  uint32_t buffer;
  uint64_t offset;
};
static_assert(sizeof(Header) == kHeaderBytes, "as on the wire");
/// Announcement and contract.
constexpr size_t kPayloadLeast = 32;
/// Messages that inbox and outbox hold: the two that may be under way, and one that is being taken out.
constexpr size_t kBoxMessages = 3;
constexpr size_t kLine = 64;
constexpr int kSocketBufferBytes = 256 * 1024;

/// One peer's part of the memory; inbox and outbox follow, each `box_bytes` long.
struct PeerState {
  uint32_t received;  // bytes in the inbox
  uint32_t unsent;    // bytes in the outbox
  uint32_t ended;     // nothing more will come
  uint32_t put_left;  // bytes of `put` that have not come
  Header put;         // the write that is being received
};

struct Peer {
  int fd;
  PeerState* state;
  uint8_t* inbox;
  uint8_t* outbox;
  uint8_t* slots[kTurns];
};

size_t round_up(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }
size_t inbox_bytes_of(size_t payload_max) { return round_up(kBoxMessages * (kHeaderBytes + payload_max)); }
size_t outbox_bytes_of(size_t payload_max, size_t put_max) { return inbox_bytes_of(payload_max) + round_up(2 * put_max); }
size_t peer_bytes_of(size_t payload_max, size_t put_max) { return kLine + inbox_bytes_of(payload_max) + outbox_bytes_of(payload_max, put_max); }

double now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

enum PollResult : int { kThere = 1, kNotYet = 0, kEnded = -1 };

/// A bit per peer, by position.
constexpr size_t kPeersMax = 32;
bool is_bits(double value) { return value >= 0 && value <= 4294967295.0; }

class Wire {
 public:
  std::vector<Peer> peers;
  uint8_t* own[kTurns] = {nullptr, nullptr};
  /// Of a slot, from its announcement on.
  size_t payload_max = 0;
  size_t announced_offset = 0;

  void close_all() {
    for (Peer& peer : peers) {
      if (peer.fd >= 0) close(peer.fd);
      peer.fd = -1;
    }
  }

  /// Scratch for both turns, then what the operation of each turn has bound.
  Bytes buffers[kTurns][kBuffers] = {};
  size_t signals_offset = 0;
  uint32_t signal_count = 0;
  size_t put_max = 0;
  int epoll_fd = -1;
  /// Messages that have come whole, ever.
  uint32_t arrivals = 0;

  bool can_announce(double bytes) const { return bytes >= kPayloadLeast && bytes <= static_cast<double>(payload_max); }

  /// To the peers whose bits are set.
  void announce(uint32_t turn, size_t bytes, uint32_t to) {
    const Header header{static_cast<uint32_t>(bytes), static_cast<uint16_t>(turn), kAnnouncement, 0, 0, 0};
    for (size_t k = 0; k < peers.size(); k++) {
      if ((to >> k & 1) != 0) post(peers[k], {part(header), {own[turn] + announced_offset, bytes}});
    }
  }

  /// `announced`: bytes of the announcement that goes before, in the same packet; 0: none does.
  void put(Peer& peer, const Header& header, const uint8_t* payload, size_t announced) {
    const Header before{static_cast<uint32_t>(announced), header.turn, kAnnouncement, 0, 0, 0};
    const iovec bytes{const_cast<uint8_t*>(payload), header.bytes};
    if (announced == 0) post(peer, {part(header), bytes});
    else post(peer, {part(before), {own[header.turn] + announced_offset, announced}, part(header), bytes});
  }

  bool unsent() const {
    for (const Peer& peer : peers) {
      if (peer.state->unsent > 0 && peer.state->ended == 0) return true;
    }
    return false;
  }

  /// Until something has come from the peers whose bits are set, or all that was kept back has been sent; looks for `spin_ns`, then
  /// sleeps up to `sleep_ms`. Who has ended may have sent all there was.
  PollResult poll_any(uint32_t from, double spin_ns, int sleep_ms) {
    const uint32_t before = arrivals;
    const bool sending = unsent();
    double start = 0;
    for (;;) {
      bool ended = false;
      for (size_t k = 0; k < peers.size(); k++) {
        Peer& peer = peers[k];
        if (peer.state->unsent > 0) flush(peer);
        if ((from >> k & 1) == 0) continue;
        receive(peer);
        ended = ended || peer.state->ended != 0;
      }
      if (arrivals != before || (sending && !unsent())) return kThere;
      if (ended) return kEnded;
      const double now = now_ns();
      if (start == 0) start = now;
      if (now - start >= spin_ns) {
        if (sleep_ms <= 0) return kNotYet;
        std::vector<pollfd> waited;
        for (const Peer& peer : peers) waited.push_back(pollfd_of(peer));
        poll(waited.data(), waited.size(), sleep_ms);
        sleep_ms = 0;
        spin_ns = 0;
        continue;
      }
      // The ranks that are waited for, or the network itself, may need this CPU.
      sched_yield();
    }
  }

  /// What its event loop is told of follows what there is to be sent.
  void arm() {
    if (epoll_fd < 0) return;
    for (Peer& peer : peers) {
      epoll_event event{};
      event.events = EPOLLIN | (peer.state->unsent > 0 ? EPOLLOUT : 0u);
      // The end of a stream can be read for ever.
      epoll_ctl(epoll_fd, peer.state->ended != 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD, peer.fd, &event);
    }
  }

  /// Whether every peer's announcement in the slot `turn` has reached `value`; looks for `spin_ns`, then sleeps up to `sleep_ms`.
  PollResult poll_until(uint32_t turn, uint32_t value, double spin_ns, int sleep_ms) {
    double start = 0;
    for (;;) {
      bool there = true, ended = false;
      for (Peer& peer : peers) {
        if (peer.state->unsent > 0) flush(peer);
        if (reached(peer, turn, value)) continue;
        receive(peer);
        if (reached(peer, turn, value)) continue;
        there = false;
        ended = ended || peer.state->ended != 0;
      }
      if (there) return kThere;
      if (ended) return kEnded;
      const double now = now_ns();
      if (start == 0) start = now;
      if (now - start >= spin_ns) {
        if (sleep_ms <= 0) return kNotYet;
        sleep_for(turn, value, sleep_ms);
        sleep_ms = 0;
        spin_ns = 0;
        continue;
      }
      // The ranks that are waited for, or the network itself, may need this CPU.
      sched_yield();
    }
  }

 private:
  static iovec part(const Header& header) { return {const_cast<Header*>(&header), kHeaderBytes}; }

  void post(Peer& peer, std::initializer_list<iovec> parts) {
    PeerState& state = *peer.state;
    if (state.ended != 0) return;
    size_t whole = 0;
    for (const iovec& each : parts) whole += each.iov_len;
    size_t sent = 0;
    if (state.unsent == 0) {
      msghdr message{};
      message.msg_iov = const_cast<iovec*>(parts.begin());
      message.msg_iovlen = parts.size();
      const ssize_t count = sendmsg(peer.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (count < 0 && !would_block()) {
        state.ended = 1;
        return;
      }
      sent = count < 0 ? 0 : static_cast<size_t>(count);
    }
    if (sent == whole) return;
    if (state.unsent + whole - sent > outbox_bytes_of(payload_max, put_max)) {
      state.ended = 1;
      return;
    }
    for (const iovec& each : parts) {
      const size_t gone = sent < each.iov_len ? sent : each.iov_len;
      keep(peer, static_cast<const uint8_t*>(each.iov_base) + gone, each.iov_len - gone);
      sent -= gone;
    }
  }

  static void keep(Peer& peer, const uint8_t* bytes, size_t count) {
    if (count == 0) return;
    std::memcpy(peer.outbox + peer.state->unsent, bytes, count);
    peer.state->unsent += static_cast<uint32_t>(count);
  }

  static void flush(Peer& peer) {
    const ssize_t count = send(peer.fd, peer.outbox, peer.state->unsent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0) {
      if (!would_block()) peer.state->ended = 1;
      return;
    }
    peer.state->unsent -= static_cast<uint32_t>(count);
    std::memmove(peer.outbox, peer.outbox + count, peer.state->unsent);
  }

  uint32_t* word(const Peer& peer, uint32_t turn) const { return reinterpret_cast<uint32_t*>(peer.slots[turn] + announced_offset); }

  bool reached(const Peer& peer, uint32_t turn, uint32_t value) const {
    return static_cast<int32_t>(__atomic_load_n(word(peer, turn), __ATOMIC_ACQUIRE) - value) >= 0;
  }

  void receive(Peer& peer) {
    PeerState& state = *peer.state;
    while (state.ended == 0) {
      const bool direct = state.put_left > 0;
      const size_t room = direct ? state.put_left : inbox_bytes_of(payload_max) - state.received;
      uint8_t* target = direct ? put_target(state) : peer.inbox + state.received;
      if (target == nullptr) {
        state.ended = 1;
        return;
      }
      const ssize_t count = recv(peer.fd, target, room, MSG_DONTWAIT);
      if (count < 0 && would_block()) return;
      if (count <= 0) {
        state.ended = 1;
        return;
      }
      if (direct) {
        state.put_left -= static_cast<uint32_t>(count);
        if (state.put_left == 0) landed(state.put);
      } else {
        state.received += static_cast<uint32_t>(count);
        if (!deliver(peer)) state.ended = 1;
      }
      if (static_cast<size_t>(count) < room && state.put_left == 0) return;
    }
  }

  /// Where the rest of a write goes; null when it goes nowhere.
  uint8_t* put_target(const PeerState& state) const {
    const Header& put = state.put;
    const Bytes& buffer = buffers[put.turn][put.buffer];
    if (put.offset > buffer.size || put.bytes > buffer.size - put.offset) return nullptr;
    return buffer.data + put.offset + (put.bytes - state.put_left);
  }

  void landed(const Header& put) {
    arrivals++;
    __atomic_fetch_add(reinterpret_cast<uint32_t*>(own[put.turn] + signals_offset + put.signal * kSignalBytes), 1u, __ATOMIC_RELEASE);
  }

  /// Puts what has come where it belongs. False when that is no message.
  bool deliver(Peer& peer) {
    PeerState& state = *peer.state;
    size_t done = 0;
    while (state.received - done >= kHeaderBytes) {
      Header header;
      std::memcpy(&header, peer.inbox + done, kHeaderBytes);
      const uint8_t* payload = peer.inbox + done + kHeaderBytes;
      const size_t there = state.received - done - kHeaderBytes;
      if (header.turn >= kTurns) return false;
      if (header.kind == kPut) {
        if (header.buffer >= kBuffers || header.signal >= signal_count || header.bytes > put_max) return false;
        state.put = header;
        state.put_left = header.bytes;
        uint8_t* target = header.bytes == 0 ? nullptr : put_target(state);
        if (header.bytes > 0 && target == nullptr) return false;
        const size_t taken = there < header.bytes ? there : header.bytes;
        if (taken > 0) std::memcpy(target, payload, taken);
        state.put_left -= static_cast<uint32_t>(taken);
        if (state.put_left == 0) landed(header);
        done += kHeaderBytes + taken;
        continue;
      }
      if (header.kind != kAnnouncement || header.bytes < kPayloadLeast || header.bytes > payload_max) return false;
      if (there < header.bytes) break;
      uint8_t* slot = peer.slots[header.turn] + announced_offset;
      std::memcpy(slot + 4, payload + 4, header.bytes - 4);
      uint32_t announced;
      std::memcpy(&announced, payload, 4);
      __atomic_store_n(word(peer, header.turn), announced, __ATOMIC_RELEASE);
      arrivals++;
      done += kHeaderBytes + header.bytes;
    }
    if (done == 0) return true;
    state.received -= static_cast<uint32_t>(done);
    if (state.received > 0) std::memmove(peer.inbox, peer.inbox + done, state.received);
    return true;
  }

  static pollfd pollfd_of(const Peer& peer) {
    return {peer.state->ended != 0 ? -1 : peer.fd, static_cast<short>(POLLIN | (peer.state->unsent > 0 ? POLLOUT : 0)), 0};
  }

  void sleep_for(uint32_t turn, uint32_t value, int sleep_ms) {
    std::vector<pollfd> waited;
    for (const Peer& peer : peers) {
      if (!reached(peer, turn, value)) waited.push_back(pollfd_of(peer));
    }
    poll(waited.data(), waited.size(), sleep_ms);
  }
};

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
    double fd;
    uint8_t* base = memory.data + k * each;
    valid = napi_get_element(env, values[0], k, &element) == napi_ok && get(env, element, fd) && fd >= 0;
    if (!valid) break;
    Peer peer{static_cast<int>(fd), reinterpret_cast<PeerState*>(base), base + kLine, base + kLine + box, {nullptr, nullptr}};
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
  double peers, payload, put;
  if (!arguments(env, info, values) || !get(env, values[0], peers) || !get(env, values[1], payload) || !get(env, values[2], put) ||
      !(payload >= 0 && payload < 1e9) || !(put >= 0 && put < 1e9)) {
    return fail_arguments(env);
  }
  const double bytes = peers * static_cast<double>(peer_bytes_of(static_cast<size_t>(payload), static_cast<size_t>(put)));
  return napi_create_double(env, bytes, &result) == napi_ok ? result : nullptr;
}

/// wireAnnounce(wire, turn, bytes, to): sends the own slot's first bytes, from the announcement on, to the peers whose bits are set.
napi_value wire_announce(napi_env env, napi_callback_info info) {
  napi_value values[4];
  Wire* wire;
  double turn, bytes, to;
  if (!arguments(env, info, values) || !get_external(env, values[0], wire) || !get(env, values[1], turn) || !get(env, values[2], bytes) ||
      !get(env, values[3], to) || !is_bits(to) || !(turn >= 0 && turn < kTurns) || !wire->can_announce(bytes)) {
    return fail_arguments(env);
  }
  wire->announce(static_cast<uint32_t>(turn), static_cast<size_t>(bytes), static_cast<uint32_t>(to));
  return nullptr;
}

/// wireBind(wire, turn, data, output): where writes for them go; empty for what the operation has not.
napi_value wire_bind(napi_env env, napi_callback_info info) {
  napi_value values[4];
  Wire* wire;
  double turn;
  Bytes data, output;
  if (!arguments(env, info, values) || !get_external(env, values[0], wire) || !get(env, values[1], turn) || !get(env, values[2], data) ||
      !get(env, values[3], output) || !(turn >= 0 && turn < kTurns)) {
    return fail_arguments(env);
  }
  wire->buffers[static_cast<uint32_t>(turn)][kData] = data;
  wire->buffers[static_cast<uint32_t>(turn)][kOutput] = output;
  return nullptr;
}

/// wirePut(wire, peer, turn, buffer, offset, bytes, targetBuffer, targetOffset, signal, announced): the peer's position among the
/// others; `announced`: bytes of the own slot's announcement that go before, 0: none.
napi_value wire_put(napi_env env, napi_callback_info info) {
  constexpr size_t kNumbers = 9;
  napi_value values[kNumbers + 1];
  double numbers[kNumbers];
  Wire* wire;
  if (!arguments(env, info, values) || !get_external(env, values[0], wire)) return fail_arguments(env);
  for (size_t k = 0; k < kNumbers; k++) {
    if (!get(env, values[k + 1], numbers[k]) || !(numbers[k] >= 0 && numbers[k] < 1e15)) return fail_arguments(env);
  }
  std::array<uint64_t, kNumbers> whole;
  for (size_t k = 0; k < kNumbers; k++) whole[k] = static_cast<uint64_t>(numbers[k]);
  const auto [peer, turn, buffer, offset, bytes, target_buffer, target_offset, signal, announced] = whole;
  if (peer >= wire->peers.size() || turn >= kTurns || buffer >= kBuffers || target_buffer >= kBuffers || bytes > wire->put_max ||
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

/// wireProgress(wire, from, spinNs, sleepMs): from the peers whose bits are set. 1 something has come, 0 not yet, −1 one of them has
/// ended.
napi_value wire_progress(napi_env env, napi_callback_info info) {
  napi_value values[4], result;
  Wire* wire;
  double from, spin_ns, sleep_ms;
  if (!arguments(env, info, values) || !get_external(env, values[0], wire) || !get(env, values[1], from) || !get(env, values[2], spin_ns) ||
      !get(env, values[3], sleep_ms) || !is_bits(from) || !(sleep_ms >= 0 && sleep_ms < 1e9)) {
    return fail_arguments(env);
  }
  const int came = wire->poll_any(static_cast<uint32_t>(from), spin_ns, static_cast<int>(sleep_ms));
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

/// wirePoll(wire, turn, value, spinNs, sleepMs): 1 all there, 0 not yet, −1 a missing peer's socket has ended.
napi_value wire_poll(napi_env env, napi_callback_info info) {
  napi_value values[5], result;
  Wire* wire;
  double turn, value, spin_ns, sleep_ms;
  if (!arguments(env, info, values) || !get_external(env, values[0], wire) || !get(env, values[1], turn) || !get(env, values[2], value) ||
      !get(env, values[3], spin_ns) || !get(env, values[4], sleep_ms) || !(turn >= 0 && turn < kTurns) || !(value >= 0 && value < 9e15) ||
      !(sleep_ms >= 0 && sleep_ms < 1e9)) {
    return fail_arguments(env);
  }
  const auto wanted = static_cast<uint32_t>(static_cast<uint64_t>(value));
  const int there = wire->poll_until(static_cast<uint32_t>(turn), wanted, spin_ns, static_cast<int>(sleep_ms));
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
  double fd;
  if (!arguments(env, info, values) || !get(env, values[0], fd)) return fail_arguments(env);
  const int own = fcntl(static_cast<int>(fd), F_DUPFD_CLOEXEC, 0);
  if (own < 0) return fail(env, "EBADF", "cannot duplicate the socket");
  const int on = 1;
  setsockopt(own, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(own, SOL_SOCKET, SO_SNDBUF, &kSocketBufferBytes, sizeof kSocketBufferBytes);
  return napi_create_int32(env, own, &result) == napi_ok ? result : nullptr;
}

/// closeSocket(fd), for one that no wire took.
napi_value close_socket(napi_env env, napi_callback_info info) {
  napi_value values[1];
  double fd;
  if (!arguments(env, info, values) || !get(env, values[0], fd)) return fail_arguments(env);
  close(static_cast<int>(fd));
  return nullptr;
}

// Watching: an event loop is told when something can be read on any socket of a wire.

struct Watch {
  napi_env env;
  uv_poll_t poll;
  int epoll_fd;
  napi_ref callback;
  napi_async_context context;
  napi_async_cleanup_hook_handle cleanup;
  bool closing;
  /// Owners: the loop, until the handle is closed, and JavaScript.
  int references;

  void close() {
    if (closing) return;
    closing = true;
    uv_poll_stop(&poll);
    napi_delete_reference(env, callback);
    napi_async_destroy(env, context);
    uv_close(reinterpret_cast<uv_handle_t*>(&poll), [](uv_handle_t* closed) {
      auto* watch = static_cast<Watch*>(closed->data);
      ::close(watch->epoll_fd);
      napi_remove_async_cleanup_hook(watch->cleanup);
      watch->unreference();
    });
  }
  void unreference() {
    if (--references == 0) delete this;
  }
};

void on_readable(uv_poll_t* poll, int, int) {
  auto* watch = static_cast<Watch*>(poll->data);
  napi_handle_scope scope;
  napi_value function, global, result;
  if (watch->closing || napi_open_handle_scope(watch->env, &scope) != napi_ok) return;
  if (napi_get_reference_value(watch->env, watch->callback, &function) == napi_ok && napi_get_global(watch->env, &global) == napi_ok) {
    if (napi_make_callback(watch->env, watch->context, global, function, 0, nullptr, &result) == napi_pending_exception) {
      napi_value thrown;
      if (napi_get_and_clear_last_exception(watch->env, &thrown) == napi_ok) napi_fatal_exception(watch->env, thrown);
    }
  }
  napi_close_handle_scope(watch->env, scope);
}

/// watchWire(wire, callback): a handle; nothing is watched until `setWatching`.
napi_value watch_wire(napi_env env, napi_callback_info info) {
  napi_value values[2], name, handle;
  Wire* wire;
  uv_loop_t* loop;
  if (!arguments(env, info, values) || !get_external(env, values[0], wire) || napi_get_uv_event_loop(env, &loop) != napi_ok) return fail_arguments(env);
  const int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  if (epoll_fd < 0) return fail(env, "EMFILE", "epoll_create1 failed");
  for (const Peer& peer : wire->peers) {
    epoll_event event{};
    event.events = EPOLLIN;
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, peer.fd, &event);
  }
  wire->epoll_fd = epoll_fd;
  auto* watch = new Watch{env, {}, epoll_fd, nullptr, nullptr, nullptr, false, 2};
  watch->poll.data = watch;
  if (uv_poll_init(loop, &watch->poll, epoll_fd) != 0) {
    close(epoll_fd);
    delete watch;
    return fail(env, "EINVAL", "uv_poll_init failed");
  }
  napi_create_string_utf8(env, "shoal:lane-wire", NAPI_AUTO_LENGTH, &name);
  napi_create_reference(env, values[1], 1, &watch->callback);
  napi_async_init(env, nullptr, name, &watch->context);
  const auto clean_up = [](napi_async_cleanup_hook_handle, void* data) { static_cast<Watch*>(data)->close(); };
  napi_add_async_cleanup_hook(env, clean_up, watch, &watch->cleanup);
  const auto finalize = [](napi_env, void* data, void*) {
    static_cast<Watch*>(data)->close();
    static_cast<Watch*>(data)->unreference();
  };
  if (napi_create_external(env, watch, finalize, nullptr, &handle) != napi_ok) return fail(env, "EINVAL", "napi_create_external failed");
  return handle;
}

/// setWatching(watch, on)
napi_value set_watching(napi_env env, napi_callback_info info) {
  napi_value values[2];
  Watch* watch;
  bool on;
  if (!arguments(env, info, values) || !get_external(env, values[0], watch) || !get(env, values[1], on)) return fail_arguments(env);
  if (watch->closing) return nullptr;
  if (on) uv_poll_start(&watch->poll, UV_READABLE, on_readable);
  else uv_poll_stop(&watch->poll);
  return nullptr;
}

/// closeWatch(watch), before its wire is closed.
napi_value close_watch(napi_env env, napi_callback_info info) {
  napi_value values[1];
  Watch* watch;
  if (!arguments(env, info, values) || !get_external(env, values[0], watch)) return fail_arguments(env);
  watch->close();
  return nullptr;
}

}  // namespace

void export_wires(napi_env env, napi_value exports) {
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
  set_function(env, exports, "watchWire", watch_wire);
  set_function(env, exports, "setWatching", set_watching);
  set_function(env, exports, "closeWatch", close_watch);
}

}  // namespace shoal
