// The wire of the network path: one stream socket to each other rank, on which announcements travel, mailbox and all, and writes into
// the memory of an operation, straight between the threads that run it. An announcement is stored where the peer's slots would be
// if they could be mapped; a write goes into its target, and then raises its signal.
//
//    message   0 payload bytes u32   4 turn u16   6 kind u16   8 signal u32   12 buffer u32   16 offset u64   24 payload
//      announcement   the own slot from its announcement on ─▶ mirror; its first word is stored last, released
//      put            bytes ─▶ offset of the target's data (0), output (1) or scratch (2); then its signal rises by one. The first
//                     to a peer may have the announcement before it, in the same packet
//
// Two threads of a process have each their own wire on the same sockets and the same memory, and use them in turn, never at once: messages
// that are half received or half sent lie in the memory, so that either thread can go on. The descriptors are the wire's own. Sending never
// blocks: bytes that the kernel does not take stay in the outbox, which holds everything that an operation sends to a peer.
//
// On a socket that has records (records.h) messages travel in them: sealed into the outbox, received into a box of their own, and opened
// from there to where they belong.
#pragma once
#include <node_api.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "napi_args.h"
#include "records.h"

namespace shoal {
namespace wire {

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
/// Bytes of announcement and contract.
constexpr size_t kPayloadLeast = 32;
/// Messages that inbox and outbox hold: the two that may be under way, and one that is being taken out.
constexpr size_t kBoxMessages = 3;
/// Records that an outbox holds beside them.
constexpr size_t kRecordOverheads = 1024;
constexpr size_t kLine = 64;

/// One peer's part of the memory; inbox and outbox follow, each `box_bytes` long.
struct PeerState {
  uint32_t received;  // bytes in the inbox
  uint32_t unsent;    // bytes in the outbox
  uint32_t ended;     // nothing more will come; kForged: what has come is not the peer's
  uint32_t put_left;  // bytes of `put` that have not come
  Header put;         // the write that is being received
  uint32_t deaf;      // takes nothing more; what it has sent before may still be read
  uint32_t sealed;    // bytes in the box of records
};

struct Peer {
  int fd;
  PeerState* state;
  uint8_t* inbox;
  uint8_t* outbox;
  uint8_t* slots[kTurns];
  /// Null: what travels is plain.
  std::shared_ptr<records::Link> link;
  /// Records that are not whole.
  uint8_t* sealed;
};

/// Bytes of an inbox, and of all of a peer's part of the memory.
size_t inbox_bytes_of(size_t payload_max);
size_t peer_bytes_of(size_t payload_max, size_t put_max);
/// The place of records that are not whole, in a peer's part.
uint8_t* sealed_box_of(uint8_t* peer_memory, size_t payload_max, size_t put_max);

enum PollResult : int { kThere = 1, kNotYet = 0, kEnded = -1, kForgedEnd = -2 };

/// A value of `ended`: the peer has sent a record that does not open.
constexpr uint32_t kForged = 2;

/// Most peers: each is a bit, by position.
constexpr size_t kPeersMax = 32;

class Wire {
 public:
  std::vector<Peer> peers;
  uint8_t* own[kTurns] = {nullptr, nullptr};
  /// Most bytes of a slot, from its announcement on.
  size_t payload_max = 0;
  size_t announced_offset = 0;

  /// Scratch for both turns, then the buffers that the operation of each turn has bound.
  Bytes buffers[kTurns][kBuffers] = {};
  size_t signals_offset = 0;
  uint32_t signal_count = 0;
  size_t put_max = 0;
  int epoll_fd = -1;
  /// Number of messages that have ever come whole.
  uint32_t arrivals = 0;

  void close_all();

  bool can_announce(double bytes) const { return bytes >= kPayloadLeast && bytes <= static_cast<double>(payload_max); }

  /// Sends the announcement to the peers whose bits are set.
  void announce(uint32_t turn, size_t bytes, uint32_t to);

  /// Sends a write. `announced`: bytes of the announcement that goes before it, in the same packet; 0: none does.
  void put(Peer& peer, const Header& header, const uint8_t* payload, size_t announced);

  bool unsent() const;

  /// Waits until anything has come from the peers whose bits are set, or all outboxes are empty; at most `spin_ns`. A peer that
  /// has ended may have sent everything before.
  PollResult poll_any(uint32_t from, double spin_ns);

  /// Makes its event loop watch for room to write as long as there is something to send.
  void arm();

  /// Waits until every peer's announcement in the slot `turn` has reached `value`; at most `spin_ns`.
  PollResult poll_until(uint32_t turn, uint32_t value, double spin_ns);

 private:
  static iovec part(const Header& header) { return {const_cast<Header*>(&header), kHeaderBytes}; }

  void post(Peer& peer, std::initializer_list<iovec> parts);

  static void keep(Peer& peer, const uint8_t* bytes, size_t count);

  static void flush(Peer& peer);

  uint32_t* word(const Peer& peer, uint32_t turn) const { return reinterpret_cast<uint32_t*>(peer.slots[turn] + announced_offset); }

  bool reached(const Peer& peer, uint32_t turn, uint32_t value) const;

  void receive(Peer& peer);

  /// The place for the rest of a write; null when it has none.
  uint8_t* put_target(const PeerState& state) const;

  void landed(const Header& put);

  /// Like `receive`, from the peer's records.
  void receive_records(Peer& peer);

  /// Takes bytes out of a record. False when they are not messages.
  bool take(Peer& peer, const uint8_t* bytes, size_t count);

  /// Memory for a record that does not go to one place.
  std::vector<uint8_t> opened_;

  /// Stores bytes that have come in their places. False when they are not a message.
  bool deliver(Peer& peer);
};

}  // namespace wire

/// Adds functions to the addon's exports.
void export_wires(napi_env env, napi_value exports);
void export_watches(napi_env env, napi_value exports);

}  // namespace shoal
