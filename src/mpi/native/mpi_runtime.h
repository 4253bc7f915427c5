// MPI in this process: one thread that makes every call into the library but the making of communicators, and so neither blocks a
// JavaScript thread nor libuv's.
//
//   JS threads ── Task ──▶ submitted ──▶ active (requests) ──▶ Event ──▶ Inbox ──▶ JS thread of the inbox
//                                    improbe ──▶ Receive ────┘
//
// It must not know N-API, messages or groups' contracts. With nothing to do the thread sleeps for ever longer, 2 ms at most.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "mpi_api.h"

namespace shoal::mpi {

/// Kinds of events by code, as in src/memory/native-mpi.ts.
enum class EventKind : int {
  kOpened,    // a: rank, b: size, text: version
  kFailed,    // text: why MPI cannot be used
  kMessage,   // a: peer, b: tag, data
  kOversize,  // a: peer, b: tag: a message larger than its port takes was dropped
  kDone,      // a: id of the task; text: what went wrong, if anything
};

struct Event {
  EventKind kind;
  double a;
  double b;
  std::string text;
  std::unique_ptr<uint8_t, void (*)(void*)> data{nullptr, std::free};
  size_t bytes = 0;
};

/// Queue of events for one JavaScript thread's user of MPI. Bounded by the operations that the user started and by the runtime's
/// limit on messages that nobody has taken. `wake` is called by any thread when events have come since `take`.
class Inbox {
 public:
  Inbox(void (*wake)(void*), void* user) : wake_(wake), user_(user) {}
  std::vector<Event> take();
  /// @returns false when it is closed, and the event is gone.
  bool push(Event&& event);
  /// Closes the inbox: no event is pushed and no thread woken any more. @returns bytes of messages that were not taken.
  size_t close();

 private:
  friend class Runtime;
  std::mutex mutex_;
  std::vector<Event> events_;
  void (*wake_)(void*);
  void* user_;
  bool closed_ = false;
  /// Number of tasks under way that read or write the user's memory; guarded by the runtime.
  int borrowing_ = 0;
};

using InboxPtr = std::shared_ptr<Inbox>;

class Runtime;

/// A task with a request of MPI. `start` and `finish` run on the MPI thread.
class Task {
 public:
  Task(InboxPtr inbox, double id, bool borrows) : inbox(std::move(inbox)), id(id), borrows(borrows) {}
  virtual ~Task() = default;
  /// @returns an MPI error code.
  virtual int start(Runtime& runtime, Request& request) = 0;
  /// Default: tells the inbox, unless the task succeeded and nobody asked.
  virtual void finish(Runtime& runtime, int error);

  const InboxPtr inbox;
  /// Id for the `kDone` event; NaN: nobody asked for it.
  const double id;
  /// True if the task reads or writes memory of the inbox's user.
  const bool borrows;
};

class Runtime {
 public:
  /// The runtime of the process.
  static Runtime& instance();

  /// Starts MPI if it is the first call; `kOpened` or `kFailed` follows.
  void open(const Api* api, const InboxPtr& inbox);
  /// Closes an inbox and waits for its tasks; when they do not end, MPI stops for good, because it would write into freed memory.
  void close(const InboxPtr& inbox, int timeout_ms);
  void submit(std::unique_ptr<Task> task);
  /// Messages with tags from 4·port to 4·port+3 go to this inbox. @returns false when another has the port.
  bool claim(const InboxPtr& inbox, int port, size_t bytes_max);
  void release(const InboxPtr& inbox, int port);
  /// Counts bytes that `take` returned as consumed.
  void consumed(size_t bytes) { untaken_ -= bytes; }
  /// Makes a communicator of these ranks of the world, in this order; `kDone` follows. Collective over them.
  void create_communicator(const InboxPtr& inbox, double id, double group, std::vector<int> ranks);

  // Functions for tasks, on the MPI thread.
  const Api& api() const { return *api_; }
  Comm messages() const { return messages_; }
  Op op(size_t dtype, size_t op) const;
  Comm communicator(const InboxPtr& inbox, double group);
  void free_communicator(const InboxPtr& inbox, double group);
  std::string text_of(int error) const;

 private:
  struct Port {
    InboxPtr inbox;
    size_t bytes_max;
  };
  struct Arrival;
  class Receive;

  void run();
  bool initialise(std::string& why);
  bool start_submitted();
  bool test_active();
  bool receive();
  void deliver(int source);
  void done(const Task& task);
  void end(std::string why);
  void pause(bool moved);
  void finish(bool orderly);
  static void at_exit(int status, void* self);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable settled_;
  const Api* api_ = nullptr;
  std::thread thread_;
  enum class State { kNone, kStarting, kOpen, kEnded } state_ = State::kNone;
  bool stop_ = false;
  bool orderly_ = false;
  std::string failure_;
  int rank_ = 0;
  int size_ = 0;
  std::vector<InboxPtr> inboxes_;
  std::unordered_map<int, Port> ports_;
  std::vector<std::unique_ptr<Task>> submitted_;
  std::map<std::pair<const Inbox*, double>, Comm> communicators_;
  int creating_ = 0;

  // Members of the MPI thread only.
  Comm messages_ = nullptr;
  Comm groups_ = nullptr;
  Op float_min_[2] = {}, float_max_[2] = {};
  std::vector<std::unique_ptr<Task>> active_;
  std::vector<Request> requests_;
  std::vector<Status> statuses_;
  std::vector<int> indices_;
  std::unordered_map<int, std::deque<std::shared_ptr<Arrival>>> arriving_;
  int idle_ = 0;

  std::atomic<size_t> untaken_{0};
};

}  // namespace shoal::mpi
