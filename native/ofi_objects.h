// What lives behind the handles of libfabric: a device that is open, memory registered with it, and endpoints. Each is used by one
// thread, but may be let go of by another. What is opened on a device keeps it open: garbage is collected in any order.
#pragma once
#include <node_api.h>

#include <atomic>
#include <csignal>
#include <memory>

#include "ofi_api.h"

namespace shoal::ofi {

/// libfabric's providers take signals for themselves, `shm` when it is first asked for; they are the process's.
class SignalGuard {
 public:
  SignalGuard() {
    for (size_t k = 0; k < kCount; k++) sigaction(kSignals[k], nullptr, &before_[k]);
  }
  ~SignalGuard() {
    for (size_t k = 0; k < kCount; k++) sigaction(kSignals[k], &before_[k], nullptr);
  }
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;

 private:
  static constexpr size_t kCount = 7;
  static constexpr int kSignals[kCount] = {SIGBUS, SIGSEGV, SIGTERM, SIGINT, SIGILL, SIGABRT, SIGFPE};
  struct sigaction before_[kCount];
};

struct FreeInfo {
  const Api* api;
  void operator()(Info* info) const { api->freeinfo(info); }
};
using InfoPointer = std::unique_ptr<Info, FreeInfo>;

/// Closes what it holds, if anything.
template <class T>
class Held {
 public:
  Held() = default;
  ~Held() { close(); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  void close() {
    T* held = held_;
    held_ = nullptr;
    if (held != nullptr) held->fid.ops->close(&held->fid);
  }
  T** out() { return &held_; }
  T* get() const { return held_; }
  T* operator->() const { return held_; }

 private:
  T* held_ = nullptr;
};

/// Objects with owners in JavaScript and among each other.
class Counted {
 public:
  void reference() { references_++; }
  void unreference() {
    if (--references_ == 0) delete this;
  }

 protected:
  virtual ~Counted() = default;

 private:
  std::atomic<int> references_{1};
};

/// Keeps a counted object.
template <class T>
class Keeps {
 public:
  explicit Keeps(T* kept) : kept_(kept) { kept_->reference(); }
  ~Keeps() { kept_->unreference(); }
  Keeps(const Keeps&) = delete;
  Keeps& operator=(const Keeps&) = delete;
  T* operator->() const { return kept_; }
  T& operator*() const { return *kept_; }

 private:
  T* kept_;
};

/// A provider on one network device.
struct Device final : Counted {
  Device(const Api* library, Info* opened) : api(library), info(opened, FreeInfo{library}) {}
  bool registers_local() const { return (info->domain_attr->mr_mode & kMrLocal) != 0; }
  bool virtual_addresses() const { return (info->domain_attr->mr_mode & kMrVirtAddr) != 0; }
  bool chooses_keys() const { return (info->domain_attr->mr_mode & kMrProvKey) != 0; }

  bool usable() const { return !closing_; }
  void enter() { users_++; }
  void leave();
  /// Once nobody is in it.
  void close(napi_env env);

  const Api* api;
  InfoPointer info;
  // Closed in the opposite order.
  Held<Fabric> fabric;
  Held<Domain> domain;

 private:
  std::atomic<int> users_{0};
  std::atomic<bool> closing_{false};
};

/// Memory of this process that a device may read, or peers may write to.
struct Registration final : Counted {
  explicit Registration(Device* on) : device(on) { device->enter(); }
  ~Registration() override { release(); }
  /// Nobody may use it through the device any more.
  void revoke();
  /// The mapping, if it is its own, is gone.
  void release();
  void close(napi_env) { release(); }

  Keeps<Device> device;
  Held<Mr> memory;
  uint8_t* data = nullptr;
  size_t bytes = 0;
  bool own_mapping = false;

 private:
  bool revoked_ = false;
};

/// libfabric's own memory for an operation; its place tells which.
struct Context {
  void* internal[8];
};

/// What libfabric has opened for an endpoint. Its provider `shm` gives endpoints of one process pointers into each other: there it
/// stays open until the last of them is closed.
class Channel {
 public:
  explicit Channel(Device* on) : device(on) { device->enter(); }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  /// It can be reached under this name.
  void announce(const uint8_t* name, size_t bytes);
  /// Whom it talks to; status.
  int meet(const uint8_t* name, uint64_t& peer);
  /// Its owner does not use it any more.
  void leave();

  Keeps<Device> device;
  // Closed in the opposite order: the endpoint before what it is bound to.
  Held<Mr> receive_memory, send_memory;
  Held<Cq> completions;
  Held<Av> addresses;
  Held<Ep> ep;

 private:
  ~Channel();
  static void drop(Channel* channel);

  uint8_t name_[256] = {};
  int users_ = 1;
  bool announced_ = false;
  Channel* met_ = nullptr;
  Channel* next_ = nullptr;
};

/// One end of one connection: an address of its own, one peer, a queue of completions.
struct Endpoint final : Counted {
  explicit Endpoint(Device* on) : channel(new Channel(on)) {}
  ~Endpoint() override { close(nullptr); }
  /// No operation reads or writes memory from now on. `env` lets go of the areas; null: they are gone with it.
  void close(napi_env env);

  /// Null when it is closed.
  Channel* channel;
  std::unique_ptr<Context[]> receives, transmits;
  uint32_t receive_count = 0, transmit_count = 0;
  size_t slot_bytes = 0;
  uint8_t* receive_area = nullptr;
  uint8_t* send_area = nullptr;
  napi_ref areas[2] = {nullptr, nullptr};
  uint64_t peer = UINT64_MAX;
  int wait_fd = -1;
};

}  // namespace shoal::ofi
