// Sees that other processes of this host have ended, before their sockets close. A process that ends first gives its memory back, for which
// the kernel needs tens of milliseconds, and then closes its sockets. Before both, it marks the locks of each thread that ends as those of a
// dead owner (robust futexes, set_robust_list(2)). So each process has a thread that holds a lock in memory which others map, and sleeps
// until one of theirs is marked (futex_waitv(2), Linux 5.16; before that, sockets alone tell).
//
//   lock   thread | FUTEX_WAITERS       its process lives
//          FUTEX_OWNER_DIED | …         it has ended
//          0                            nobody may wait for its end, or not yet
#include "lives.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <mutex>
#include <vector>

#include "napi_args.h"

namespace shoal {
namespace {

// Older headers have neither; the number is the same on all architectures.
constexpr long kFutexWaitv = 449;
constexpr size_t kWaitersMost = 128;
constexpr uint32_t kWordOf32Bits = 2;
struct Waiter {
  uint64_t value;
  uint64_t address;
  uint32_t flags;
  uint32_t reserved;
};

uint32_t load(const uint32_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
void store(uint32_t* word, uint32_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
void wake_all(uint32_t* word) { syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

struct Lives {
  napi_env env;
  uint32_t* own;
  /// A timer's descriptor: it expires when a process has ended.
  int timer;
  pthread_t thread;
  /// The list of the thread's locks, which the kernel reads when the thread ends.
  robust_list lock{};
  robust_list_head locks{};
  std::mutex mutex;
  // Under the mutex:
  std::vector<uint32_t*> others;
  uint32_t changes = 0;
  bool closes = false;

  Lives(napi_env env, uint32_t* own, int timer) : env(env), own(own), timer(timer) {}

  void run() {
    locks = {{&lock}, reinterpret_cast<char*>(own) - reinterpret_cast<char*>(&lock), nullptr};
    lock.next = &locks.list;
    store(own, static_cast<uint32_t>(syscall(SYS_gettid)) | FUTEX_WAITERS);
    syscall(SYS_set_robust_list, &locks, sizeof locks);
    std::vector<Waiter> waiters;
    for (bool waits_for_others = true; look(waiters);) {
      if (!waits_for_others) waiters.resize(1);
      const long woken = syscall(kFutexWaitv, waiters.data(), waiters.size(), 0, nullptr, 0);
      if (woken >= 0 || errno == EAGAIN || errno == EINTR) continue;
      if (errno == ENOSYS || errno == EPERM) {
        syscall(SYS_futex, &changes, FUTEX_WAIT, waiters[0].value, nullptr, nullptr, 0);
      } else if (load(&changes) == waiters[0].value) {
        // Else a lock has been unmapped since it was listed, and is not watched any more.
        waits_for_others = false;
      }
    }
    store(own, 0);
    locks.list.next = &locks.list;
  }

  /// Takes note of those that have ended, and lists what to wait for: a change, which is first, and the others' ends. False: it is over.
  bool look(std::vector<Waiter>& waiters) {
    const std::lock_guard<std::mutex> guard(mutex);
    waiters.clear();
    const auto wait = [&](const uint32_t* word, uint32_t value) {
      waiters.push_back({value, reinterpret_cast<uintptr_t>(word), kWordOf32Bits, 0});
    };
    wait(&changes, changes);
    const auto has_ended = [&](uint32_t* word) {
      const uint32_t value = load(word);
      if ((value & FUTEX_OWNER_DIED) == 0) {
        if (waiters.size() < kWaitersMost) wait(word, value);
        return false;
      }
      // The kernel has woken one process. If that one is stopped, the others' sockets tell them.
      wake_all(word);
      const itimerspec soon{{}, {0, 1}};
      timerfd_settime(timer, 0, &soon, nullptr);
      return true;
    };
    others.erase(std::remove_if(others.begin(), others.end(), has_ended), others.end());
    return !closes;
  }

  void watch(std::vector<uint32_t*> words) {
    const std::lock_guard<std::mutex> guard(mutex);
    others = std::move(words);
    changed();
  }

  void close() {
    {
      const std::lock_guard<std::mutex> guard(mutex);
      if (closes) return;
      closes = true;
      changed();
    }
    pthread_join(thread, nullptr);
    napi_remove_env_cleanup_hook(env, clean_up, this);
  }

  void changed() {
    store(&changes, changes + 1);
    wake_all(&changes);
  }

  static void clean_up(void* lives) { static_cast<Lives*>(lives)->close(); }
};

/// createLives(own, timer): holds the lock `own`, and sets the timer whenever a process has ended whose lock is watched. `own` must stay
/// mapped until `closeLives`.
napi_value create_lives(napi_env env, napi_callback_info info) {
  napi_value values[2], handle;
  Words own;
  int timer;
  if (!arguments(env, info, values) || !get(env, values[0], own) || own.size != 1 || !get_descriptor(env, values[1], timer))
    return fail_arguments(env);
  auto* lives = new Lives(env, own.data, timer);
  const auto run = [](void* data) -> void* {
    static_cast<Lives*>(data)->run();
    return nullptr;
  };
  if (pthread_create(&lives->thread, nullptr, run, lives) != 0) {
    delete lives;
    return fail(env, "EAGAIN", "pthread_create failed");
  }
  napi_add_env_cleanup_hook(env, Lives::clean_up, lives);
  const auto finalize = [](napi_env, void* data, void*) {
    static_cast<Lives*>(data)->close();
    delete static_cast<Lives*>(data);
  };
  if (napi_create_external(env, lives, finalize, nullptr, &handle) == napi_ok) return handle;
  finalize(env, lives, nullptr);
  return fail(env, "EINVAL", "napi_create_external failed");
}

/// watchLives(lives, locks: Uint32Array[]): from now on those, which must stay mapped as long, and as many of them as the kernel can.
napi_value watch_lives(napi_env env, napi_callback_info info) {
  napi_value values[2], element;
  Lives* lives;
  uint32_t count;
  if (!arguments(env, info, values) || !get_external(env, values[0], lives) || napi_get_array_length(env, values[1], &count) != napi_ok)
    return fail_arguments(env);
  std::vector<uint32_t*> locks;
  for (uint32_t k = 0; k < count; k++) {
    Words lock;
    if (napi_get_element(env, values[1], k, &element) != napi_ok || !get(env, element, lock) || lock.size != 1) return fail_arguments(env);
    locks.push_back(lock.data);
  }
  lives->watch(std::move(locks));
  return nullptr;
}

/// closeLives(lives): others wait no longer for the end of this process.
napi_value close_lives(napi_env env, napi_callback_info info) {
  napi_value values[1];
  Lives* lives;
  if (!arguments(env, info, values) || !get_external(env, values[0], lives)) return fail_arguments(env);
  lives->close();
  return nullptr;
}

/// endReading(descriptor): what has come over a socket can still be read, then its end.
napi_value end_reading(napi_env env, napi_callback_info info) {
  napi_value values[1];
  int fd;
  if (!arguments(env, info, values) || !get_descriptor(env, values[0], fd)) return fail_arguments(env);
  shutdown(fd, SHUT_RD);
  return nullptr;
}

}  // namespace

void export_lives(napi_env env, napi_value exports) {
  set_function(env, exports, "createLives", create_lives);
  set_function(env, exports, "watchLives", watch_lives);
  set_function(env, exports, "closeLives", close_lives);
  set_function(env, exports, "endReading", end_reading);
}

}  // namespace shoal
