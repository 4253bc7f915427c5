// Options and measurements of TCP sockets that Node does not offer. Nothing here keeps a descriptor.
#include "sockets.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "napi_args.h"

namespace shoal {
namespace {

constexpr size_t kNameBytes = 16;  // TCP_CA_NAME_MAX

/// congestionControl(descriptor, names: string[]): the first of `names` that the kernel grants, or else what the socket has; undefined when
/// the descriptor is not a TCP socket.
napi_value congestion_control(napi_env env, napi_callback_info info) {
  napi_value values[2], result;
  int fd;
  uint32_t count;
  if (!arguments(env, info, values) || !get_descriptor(env, values[0], fd) || napi_get_array_length(env, values[1], &count) != napi_ok) {
    return fail_arguments(env);
  }
  for (uint32_t k = 0; k < count; k++) {
    napi_value element;
    char name[kNameBytes];
    size_t length;
    if (napi_get_element(env, values[1], k, &element) != napi_ok ||
        napi_get_value_string_utf8(env, element, name, sizeof name, &length) != napi_ok) {
      return fail_arguments(env);
    }
    if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, static_cast<socklen_t>(length)) == 0) break;
  }
  char name[kNameBytes] = {};
  socklen_t length = sizeof name;
  if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) != 0) return nullptr;
  return napi_create_string_utf8(env, name, strnlen(name, sizeof name), &result) == napi_ok ? result : nullptr;
}

/// socketRoundTrip(descriptor): the shortest round trip that the kernel has seen, in microseconds; undefined when it has seen none, or the
/// descriptor is not a TCP socket.
napi_value socket_round_trip(napi_env env, napi_callback_info info) {
  napi_value values[1], result;
  int fd;
  if (!arguments(env, info, values) || !get_descriptor(env, values[0], fd)) return fail_arguments(env);
  tcp_info state{};
  socklen_t length = sizeof state;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &state, &length) != 0) return nullptr;
  // Older kernels report less.
  if (length < offsetof(tcp_info, tcpi_min_rtt) + sizeof state.tcpi_min_rtt || state.tcpi_min_rtt == UINT32_MAX) return nullptr;
  return napi_create_double(env, state.tcpi_min_rtt, &result) == napi_ok ? result : nullptr;
}

/// socketSegments(descriptor, counts): fills counts[0] with the segments of data that the socket has sent so far, those sent again included,
/// and counts[1] with those sent again; false when the kernel does not say, or the descriptor is not a TCP socket.
napi_value socket_segments(napi_env env, napi_callback_info info) {
  napi_value values[2], result;
  int fd;
  Doubles counts;
  if (!arguments(env, info, values) || !get_descriptor(env, values[0], fd) || !get(env, values[1], counts) || counts.size < 2) {
    return fail_arguments(env);
  }
  tcp_info state{};
  socklen_t length = sizeof state;
  const bool known = getsockopt(fd, IPPROTO_TCP, TCP_INFO, &state, &length) == 0 &&
                     length >= offsetof(tcp_info, tcpi_data_segs_out) + sizeof state.tcpi_data_segs_out;
  if (known) {
    counts.data[0] = state.tcpi_data_segs_out;
    counts.data[1] = state.tcpi_total_retrans;
  }
  return napi_get_boolean(env, known, &result) == napi_ok ? result : nullptr;
}

}  // namespace

void export_sockets(napi_env env, napi_value exports) {
  set_function(env, exports, "congestionControl", congestion_control);
  set_function(env, exports, "socketRoundTrip", socket_round_trip);
  set_function(env, exports, "socketSegments", socket_segments);
}

}  // namespace shoal
