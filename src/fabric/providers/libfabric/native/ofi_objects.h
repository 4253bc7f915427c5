// The objects behind the handles of libfabric: a device that is open, memory registered with it, and endpoints. Each is used by one thread,
// but may be released by another. Objects that are opened on a device keep it open: garbage is collected in any order.
#pragma once
#include <node_api.h>

#include <atomic>
#include <csignal>
#include <memory>

#include "ofi_api.h"

namespace shoal::ofi {

/// Restores the process's signal handlers: libfabric's providers install their own, `shm` when it is first asked for.
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

/// Closes the object that it holds, if any.
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

/// An object with owners in JavaScript and among other objects, which are counted.
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

/// Keeps a counted object alive.
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
  /// Closes the device once no object is open on it.
  void close(napi_env env);

  const Api* api;
  InfoPointer info;
  // Members are closed in the opposite order.
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
  /// Ends the use of the memory through the device.
  void revoke();
  /// Releases the second mapping, if there is one.
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

/// libfabric's own memory for an operation; its index identifies the operation.
struct Context {
  void* internal[8];
};

/// The objects that libfabric has opened for an endpoint. Its provider `shm` gives endpoints of one process pointers into each
/// other: there a channel stays open until the last of them is closed.
class Channel {
 public:
  explicit Channel(Device* on) : device(on) { device->enter(); }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  /// Announces the name under which the channel can be reached.
  void announce(const uint8_t* name, size_t bytes);
  /// Sets the peer; returns a status.
  int meet(const uint8_t* name, uint64_t& peer);
  /// Its owner does not use it any more.
  void leave();

  Keeps<Device> device;
  // Members are closed in the opposite order: the endpoint before the objects that it is bound to.
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
  /// Ends the endpoint: no operation reads or writes memory from now on. `env` releases the areas; null: they are gone with it.
  void close(napi_env env);

  /// The channel; null when the endpoint is closed.
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
