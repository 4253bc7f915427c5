// Watches sockets: an event loop is told when something can be read on any socket of a wire (wire.h), or on one descriptor. A
// timer is a descriptor that another thread of this process may set.
#include <cerrno>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>
#include <uv.h>

#include "wire.h"

namespace shoal {
namespace wire {
namespace {

struct Watch {
  napi_env env;
  uv_poll_t poll;
  /// A descriptor of its own.
  int fd;
  napi_ref callback;
  napi_async_context context;
  napi_async_cleanup_hook_handle cleanup;
  bool closing;
  /// Number of owners: the loop, until the handle is closed, and JavaScript.
  int references;

  void close() {
    if (closing) return;
    closing = true;
    uv_poll_stop(&poll);
    if (callback != nullptr) napi_delete_reference(env, callback);
    if (context != nullptr) napi_async_destroy(env, context);
    uv_close(reinterpret_cast<uv_handle_t*>(&poll), [](uv_handle_t* closed) {
      auto* watch = static_cast<Watch*>(closed->data);
      ::close(watch->fd);
      if (watch->cleanup != nullptr) napi_remove_async_cleanup_hook(watch->cleanup);
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

/// Makes a handle; nothing is watched until `setWatching`. Takes the descriptor over, also when it fails.
napi_value create_watch(napi_env env, int fd, napi_value callback) {
  napi_value name, handle;
  uv_loop_t* loop;
  auto* watch = new Watch{env, {}, fd, nullptr, nullptr, nullptr, false, 2};
  watch->poll.data = watch;
  if (napi_get_uv_event_loop(env, &loop) != napi_ok || uv_poll_init(loop, &watch->poll, fd) != 0) {
    close(fd);
    delete watch;
    return fail(env, "EINVAL", "uv_poll_init failed");
  }
  const auto clean_up = [](napi_async_cleanup_hook_handle, void* data) { static_cast<Watch*>(data)->close(); };
  const auto finalize = [](napi_env, void* data, void*) {
    static_cast<Watch*>(data)->close();
    static_cast<Watch*>(data)->unreference();
  };
  if (napi_create_string_utf8(env, "shoal:watch", NAPI_AUTO_LENGTH, &name) != napi_ok ||
      napi_create_reference(env, callback, 1, &watch->callback) != napi_ok || napi_async_init(env, nullptr, name, &watch->context) != napi_ok ||
      napi_add_async_cleanup_hook(env, clean_up, watch, &watch->cleanup) != napi_ok ||
      napi_create_external(env, watch, finalize, nullptr, &handle) != napi_ok) {
    watch->references = 1;
    watch->close();
    return fail(env, "EINVAL", "a descriptor cannot be watched");
  }
  return handle;
}

/// watchWire(wire, callback)
napi_value watch_wire(napi_env env, napi_callback_info info) {
  napi_value values[2];
  Wire* wire;
  if (!arguments(env, info, values) || !get_external(env, values[0], wire)) return fail_arguments(env);
  const int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  if (epoll_fd < 0) return fail(env, "EMFILE", "epoll_create1 failed");
  for (const Peer& peer : wire->peers) {
    epoll_event event{};
    event.events = EPOLLIN;
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, peer.fd, &event);
  }
  napi_value handle = create_watch(env, epoll_fd, values[1]);
  if (handle != nullptr) wire->epoll_fd = epoll_fd;
  return handle;
}

/// watchDescriptor(descriptor, callback): of a duplicate, so that its owner may close it when he likes.
napi_value watch_descriptor(napi_env env, napi_callback_info info) {
  napi_value values[2];
  double fd;
  if (!arguments(env, info, values) || !get(env, values[0], fd)) return fail_arguments(env);
  const int duplicate = fcntl(static_cast<int>(fd), F_DUPFD_CLOEXEC, 0);
  if (duplicate < 0) return fail(env, errno == EBADF ? "EBADF" : "EMFILE", "the descriptor cannot be duplicated");
  return create_watch(env, duplicate, values[1]);
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

/// createTimer(): a descriptor that can be read once its time has come.
napi_value create_timer(napi_env env, napi_callback_info) {
  const int fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  napi_value result;
  if (fd < 0) return fail(env, errno == EMFILE || errno == ENFILE ? "EMFILE" : "ENOSYS", "timerfd_create failed");
  if (napi_create_int32(env, fd, &result) == napi_ok) return result;
  close(fd);
  return nullptr;
}

/// setTimer(timer, nanoseconds): from now; 0: never. What had come before is forgotten.
napi_value set_timer(napi_env env, napi_callback_info info) {
  napi_value values[2];
  int fd;
  double nanoseconds;
  if (!arguments(env, info, values) || !get_descriptor(env, values[0], fd) || !get_whole(env, values[1], 0, 1e9 - 1, nanoseconds))
    return fail_arguments(env);
  const itimerspec spec{{}, {0, static_cast<long>(nanoseconds)}};
  if (timerfd_settime(fd, 0, &spec, nullptr) != 0) return fail(env, "EINVAL", "timerfd_settime failed");
  return nullptr;
}

/// closeTimer(timer)
napi_value close_timer(napi_env env, napi_callback_info info) {
  napi_value values[1];
  int fd;
  if (!arguments(env, info, values) || !get_descriptor(env, values[0], fd)) return fail_arguments(env);
  close(fd);
  return nullptr;
}

}  // namespace
}  // namespace wire

void export_watches(napi_env env, napi_value exports) {
  using namespace wire;
  set_function(env, exports, "watchWire", watch_wire);
  set_function(env, exports, "watchDescriptor", watch_descriptor);
  set_function(env, exports, "setWatching", set_watching);
  set_function(env, exports, "closeWatch", close_watch);
  set_function(env, exports, "createTimer", create_timer);
  set_function(env, exports, "setTimer", set_timer);
  set_function(env, exports, "closeTimer", close_timer);
}

}  // namespace shoal
