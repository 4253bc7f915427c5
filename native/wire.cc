#include "wire.h"

#include <errno.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cstring>

namespace shoal {
namespace wire {
namespace {

size_t round_up(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

double now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

size_t inbox_bytes_of(size_t payload_max) { return round_up(kBoxMessages * (kHeaderBytes + payload_max)); }

static size_t outbox_bytes_of(size_t payload_max, size_t put_max) {
  return inbox_bytes_of(payload_max) + round_up(2 * put_max) + kRecordOverheads * (records::kLengthBytes + records::kTagBytes);
}

size_t peer_bytes_of(size_t payload_max, size_t put_max) {
  return kLine + inbox_bytes_of(payload_max) + round_up(outbox_bytes_of(payload_max, put_max)) + round_up(records::kRecordMax);
}

uint8_t* sealed_box_of(uint8_t* peer_memory, size_t payload_max, size_t put_max) {
  return peer_memory + peer_bytes_of(payload_max, put_max) - round_up(records::kRecordMax);
}

void Wire::close_all() {
  for (Peer& peer : peers) {
    if (peer.fd >= 0) {
      records::release_link(peer.fd);
      close(peer.fd);
    }
    peer.fd = -1;
  }
}

void Wire::announce(uint32_t turn, size_t bytes, uint32_t to) {
  const Header header{static_cast<uint32_t>(bytes), static_cast<uint16_t>(turn), kAnnouncement, 0, 0, 0};
  for (size_t k = 0; k < peers.size(); k++) {
    if ((to >> k & 1) != 0) post(peers[k], {part(header), {own[turn] + announced_offset, bytes}});
  }
}

void Wire::put(Peer& peer, const Header& header, const uint8_t* payload, size_t announced) {
  const Header before{static_cast<uint32_t>(announced), header.turn, kAnnouncement, 0, 0, 0};
  const iovec bytes{const_cast<uint8_t*>(payload), header.bytes};
  if (announced == 0) post(peer, {part(header), bytes});
  else post(peer, {part(before), {own[header.turn] + announced_offset, announced}, part(header), bytes});
}

bool Wire::unsent() const {
  for (const Peer& peer : peers) {
    if (peer.state->unsent > 0 && peer.state->ended == 0) return true;
  }
  return false;
}

PollResult Wire::poll_any(uint32_t from, double spin_ns) {
  const uint32_t before = arrivals;
  const bool sending = unsent();
  double start = 0;
  for (;;) {
    uint32_t ended = 0;
    for (size_t k = 0; k < peers.size(); k++) {
      Peer& peer = peers[k];
      if (peer.state->unsent > 0) flush(peer);
      if ((from >> k & 1) == 0) continue;
      receive(peer);
      if (peer.state->ended > ended) ended = peer.state->ended;
    }
    if (arrivals != before || (sending && !unsent())) return kThere;
    if (ended != 0) return ended == kForged ? kForgedEnd : kEnded;
    const double now = now_ns();
    if (start == 0) start = now;
    if (now - start >= spin_ns) return kNotYet;
    // The ranks that are waited for, or the network itself, may need this CPU.
    sched_yield();
  }
}

void Wire::arm() {
  if (epoll_fd < 0) return;
  for (Peer& peer : peers) {
    epoll_event event{};
    event.events = EPOLLIN | (peer.state->unsent > 0 ? EPOLLOUT : 0u);
    // The end of a stream stays readable for ever, so it is not watched.
    epoll_ctl(epoll_fd, peer.state->ended != 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD, peer.fd, &event);
  }
}

PollResult Wire::poll_until(uint32_t turn, uint32_t value, double spin_ns) {
  double start = 0;
  for (;;) {
    bool there = true;
    uint32_t ended = 0;
    for (Peer& peer : peers) {
      if (peer.state->unsent > 0) flush(peer);
      if (reached(peer, turn, value)) continue;
      receive(peer);
      if (reached(peer, turn, value)) continue;
      there = false;
      if (peer.state->ended > ended) ended = peer.state->ended;
    }
    if (there) return kThere;
    if (ended != 0) return ended == kForged ? kForgedEnd : kEnded;
    const double now = now_ns();
    if (start == 0) start = now;
    if (now - start >= spin_ns) return kNotYet;
    // The ranks that are waited for, or the network itself, may need this CPU.
    sched_yield();
  }
}

void Wire::post(Peer& peer, std::initializer_list<iovec> parts) {
  PeerState& state = *peer.state;
  if (state.ended != 0 || state.deaf != 0) return;
  size_t whole = 0;
  for (const iovec& each : parts) whole += each.iov_len;
  if (peer.link) {
    const uint32_t before = state.unsent;
    uint8_t* target = peer.outbox + before;
    uint8_t* end = before + records::sealed_bytes(whole) > outbox_bytes_of(payload_max, put_max) ? nullptr : peer.link->sealer->seal(parts.begin(), parts.size(), target);
    if (end == nullptr) {
      state.ended = 1;
      return;
    }
    state.unsent += static_cast<uint32_t>(end - target);
    if (before == 0) flush(peer);
    return;
  }
  size_t sent = 0;
  if (state.unsent == 0) {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(parts.begin());
    message.msg_iovlen = parts.size();
    const ssize_t count = sendmsg(peer.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0 && !would_block()) {
      state.deaf = 1;
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

void Wire::keep(Peer& peer, const uint8_t* bytes, size_t count) {
  if (count == 0) return;
  std::memcpy(peer.outbox + peer.state->unsent, bytes, count);
  peer.state->unsent += static_cast<uint32_t>(count);
}

void Wire::flush(Peer& peer) {
  const ssize_t count = send(peer.fd, peer.outbox, peer.state->unsent, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (count < 0) {
    if (would_block()) return;
    peer.state->deaf = 1;
    peer.state->unsent = 0;
    return;
  }
  peer.state->unsent -= static_cast<uint32_t>(count);
  std::memmove(peer.outbox, peer.outbox + count, peer.state->unsent);
}

bool Wire::reached(const Peer& peer, uint32_t turn, uint32_t value) const {
  return static_cast<int32_t>(__atomic_load_n(word(peer, turn), __ATOMIC_ACQUIRE) - value) >= 0;
}

bool Wire::take(Peer& peer, const uint8_t* bytes, size_t count) {
  PeerState& state = *peer.state;
  while (count > 0) {
    const bool direct = state.put_left > 0;
    const size_t room = direct ? state.put_left : inbox_bytes_of(payload_max) - state.received;
    uint8_t* target = direct ? put_target(state) : peer.inbox + state.received;
    const size_t taken = count < room ? count : room;
    if (target == nullptr || taken == 0) return false;
    std::memcpy(target, bytes, taken);
    bytes += taken;
    count -= taken;
    if (direct) {
      state.put_left -= static_cast<uint32_t>(taken);
      if (state.put_left == 0) landed(state.put);
    } else {
      state.received += static_cast<uint32_t>(taken);
      if (!deliver(peer)) return false;
    }
  }
  return true;
}

void Wire::receive_records(Peer& peer) {
  PeerState& state = *peer.state;
  while (state.ended == 0) {
    const size_t room = records::kRecordMax - state.sealed;
    const ssize_t count = recv(peer.fd, peer.sealed + state.sealed, room, MSG_DONTWAIT);
    if (count < 0 && would_block()) return;
    if (count <= 0) {
      state.ended = 1;
      return;
    }
    state.sealed += static_cast<uint32_t>(count);
    size_t done = 0;
    while (state.ended == 0 && state.sealed - done >= records::kLengthBytes) {
      const uint8_t* record = peer.sealed + done;
      const size_t sealed = static_cast<size_t>(record[0]) << 8 | record[1];
      if (sealed <= records::kTagBytes) {
        state.ended = kForged;
        break;
      }
      if (state.sealed - done < records::kLengthBytes + sealed) break;
      done += records::kLengthBytes + sealed;
      const size_t plain = sealed - records::kTagBytes;
      uint8_t* direct = state.put_left >= plain ? put_target(state) : nullptr;
      if (direct == nullptr) opened_.resize(records::kPlainMax);
      bool good = peer.link->opener->open(record + records::kLengthBytes, sealed, direct == nullptr ? opened_.data() : direct);
      if (good && direct != nullptr) {
        state.put_left -= static_cast<uint32_t>(plain);
        if (state.put_left == 0) landed(state.put);
      } else {
        good = good && take(peer, opened_.data(), plain);
      }
      if (!good) state.ended = kForged;
    }
    state.sealed -= static_cast<uint32_t>(done);
    if (done > 0 && state.sealed > 0) std::memmove(peer.sealed, peer.sealed + done, state.sealed);
    if (static_cast<size_t>(count) < room) return;
  }
}

void Wire::receive(Peer& peer) {
  if (peer.link) return receive_records(peer);
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

uint8_t* Wire::put_target(const PeerState& state) const {
  const Header& put = state.put;
  const Bytes& buffer = buffers[put.turn][put.buffer];
  if (put.offset > buffer.size || put.bytes > buffer.size - put.offset) return nullptr;
  return buffer.data + put.offset + (put.bytes - state.put_left);
}

void Wire::landed(const Header& put) {
  arrivals++;
  __atomic_fetch_add(reinterpret_cast<uint32_t*>(own[put.turn] + signals_offset + put.signal * kSignalBytes), 1u, __ATOMIC_RELEASE);
}

bool Wire::deliver(Peer& peer) {
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
}  // namespace wire
}  // namespace shoal
