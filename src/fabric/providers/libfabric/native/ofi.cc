// libfabric for JavaScript: devices, registered memory and endpoints as flat functions; their user is
// ../libfabric.ts. Every number is checked here; results are status codes: 0, or a negative error number.
#include "ofi.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <mutex>

#include "napi_args.h"
#include "ofi_objects.h"

namespace shoal {
namespace ofi {
namespace {

constexpr size_t kNameBytes = 256;
constexpr size_t kAddressBytes = 256;
constexpr uint64_t kOrdered = 1ull << 4 | 1ull << 5 | 1ull << 7 | 1ull << 8;  // WAW, WAS, SAW, SAS
constexpr double kMaxExact = 0x1p53 - 1;
constexpr size_t kDepthMax = 1 << 16;
constexpr size_t kEventWords = 4;
constexpr size_t kBatch = 32;
constexpr int kPollRounds = 64;

/// Kinds of events, as `ofiPoll` writes them.
enum Event { kReceived = 1, kTransmitted = 2, kRemoteData = 3, kFailed = 4 };

napi_value fail_with(napi_env env, const Api* api, const char* call, int status) {
  const int error = status < 0 ? -status : status;
  char text[256];
  std::snprintf(text, sizeof text, "%s: %s", call, api->strerror(error));
  const char* code = error == ENOMEM   ? "ENOMEM"
                     : error == EMFILE ? "EMFILE"
                     : error == ENFILE ? "ENFILE"
                     : error == ENOSPC ? "ENOSPC"
                     : error == ENODATA ? "ENODATA"
                                       : "EFABRIC";
  return fail(env, code, text);
}

bool get_text(napi_env env, napi_value value, char (&out)[kNameBytes]) {
  size_t length;
  return napi_get_value_string_utf8(env, value, out, sizeof out, &length) == napi_ok && length < sizeof out - 1;
}

bool get(napi_env env, napi_value value, uint64_t& out) {
  bool lossless;
  return napi_get_value_bigint_uint64(env, value, &out, &lossless) == napi_ok && lossless;
}

/// Reads an optional handle; undefined gives null.
template <class T>
bool get_optional(napi_env env, napi_value value, T*& out) {
  napi_valuetype type;
  out = nullptr;
  if (napi_typeof(env, value, &type) != napi_ok) return false;
  return type == napi_undefined || get_external(env, value, out);
}

/// Makes a handle, which takes the caller's reference over.
template <class T>
napi_value to_handle(napi_env env, T* object) {
  napi_value handle;
  const auto finalize = [](napi_env env, void* data, void*) {
    static_cast<T*>(data)->close(env);
    static_cast<T*>(data)->unreference();
  };
  if (napi_create_external(env, object, finalize, nullptr, &handle) == napi_ok) return handle;
  object->unreference();
  return fail(env, "EINVAL", "napi_create_external failed");
}

napi_value number(napi_env env, double value) {
  napi_value result;
  return napi_create_double(env, value, &result) == napi_ok ? result : nullptr;
}

double exact(size_t value) { return value > static_cast<size_t>(kMaxExact) ? kMaxExact : static_cast<double>(value); }

const Api* library(napi_env env) {
  const char* why;
  const Api* api = load(why);
  if (api == nullptr) fail(env, "ENOENT", why);
  return api;
}

/// ofiVersion(): `1.17`. Throws ENOENT with the reason when there is no library.
napi_value ofi_version(napi_env env, napi_callback_info) {
  const Api* api = library(env);
  if (api == nullptr) return nullptr;
  char text[32];
  std::snprintf(text, sizeof text, "%u.%u", api->version() >> 16, api->version() & 0xffff);
  napi_value result;
  return napi_create_string_utf8(env, text, NAPI_AUTO_LENGTH, &result) == napi_ok ? result : nullptr;
}

// ── devices ──────────────────────────────────────────────────────────────────────────────────────────────────────────

struct Wanted {
  const char* provider;
  const char* device;
  size_t transmits;
  size_t receives;
  uint32_t traffic_class;
  bool ordered;
};

/// Asks for the providers' offers; the hints name all modes of memory registration that this file honours.
int query(const Api* api, const Wanted& wanted, Info** out) {
  InfoPointer hints(api->dupinfo(nullptr), FreeInfo{api});
  if (hints == nullptr) return -ENOMEM;
  hints->caps = kMsg | kRma;
  hints->mode = kModeContext | kModeContext2 | kModeRxCqData;
  hints->ep_attr->type = kEpRdm;
  hints->domain_attr->mr_mode = kMrLocal | kMrVirtAddr | kMrAllocated | kMrProvKey;
  hints->domain_attr->resource_mgmt = kRmEnabled;
  hints->tx_attr->size = wanted.transmits;
  hints->rx_attr->size = wanted.receives;
  hints->tx_attr->tclass = wanted.traffic_class;
  hints->domain_attr->tclass = wanted.traffic_class;
  if (wanted.ordered) hints->tx_attr->msg_order = hints->rx_attr->msg_order = kOrdered;
  if (wanted.provider[0] != '\0') hints->fabric_attr->prov_name = strdup(wanted.provider);
  if (wanted.device[0] != '\0') hints->domain_attr->name = strdup(wanted.device);
  const SignalGuard guard;
  return api->getinfo(kVersion, nullptr, nullptr, 0, hints.get(), out);
}

void set_optional_text(napi_env env, napi_value object, const char* name, const char* text) {
  set_text(env, object, name, text == nullptr ? "" : text);
}

napi_value describe(napi_env env, const Info& info) {
  napi_value object;
  if (napi_create_object(env, &object) != napi_ok) return nullptr;
  set_optional_text(env, object, "provider", info.fabric_attr->prov_name);
  set_optional_text(env, object, "fabric", info.fabric_attr->name);
  set_optional_text(env, object, "device", info.domain_attr->name);
  char source[INET6_ADDRSTRLEN] = "";
  if (info.src_addr != nullptr && info.addr_format == kSockaddrIn) {
    inet_ntop(AF_INET, &static_cast<const sockaddr_in*>(info.src_addr)->sin_addr, source, sizeof source);
  } else if (info.src_addr != nullptr && info.addr_format == kSockaddrIn6) {
    inet_ntop(AF_INET6, &static_cast<const sockaddr_in6*>(info.src_addr)->sin6_addr, source, sizeof source);
  }
  set_text(env, object, "source", source);
  set_number(env, object, "addressFormat", info.addr_format);
  set_number(env, object, "messageOrder", static_cast<double>(info.tx_attr->msg_order & info.rx_attr->msg_order & kOrdered));
  set_number(env, object, "orderedWriteBytes", exact(info.ep_attr->max_order_waw_size));
  set_number(env, object, "registrationModes", info.domain_attr->mr_mode);
  set_number(env, object, "keyBytes", exact(info.domain_attr->mr_key_size));
  set_number(env, object, "immediateBytes", exact(info.domain_attr->cq_data_size));
  set_number(env, object, "maxMessageBytes", exact(info.ep_attr->max_msg_size));
  set_number(env, object, "transmits", exact(info.tx_attr->size));
  set_number(env, object, "receives", exact(info.rx_attr->size));
  return object;
}

bool get_wanted(napi_env env, napi_value provider, napi_value device, char (&provider_text)[kNameBytes], char (&device_text)[kNameBytes],
                Wanted& wanted) {
  if (!get_text(env, provider, provider_text) || !get_text(env, device, device_text)) return false;
  wanted.provider = provider_text;
  wanted.device = device_text;
  return true;
}

/// ofiDevices(provider, device): what there is, best first as libfabric ranks it; empty texts for all.
napi_value ofi_devices(napi_env env, napi_callback_info info) {
  napi_value values[2], list;
  char provider[kNameBytes], device[kNameBytes];
  Wanted wanted{};
  if (!arguments(env, info, values) || !get_wanted(env, values[0], values[1], provider, device, wanted)) return fail_arguments(env);
  const Api* api = library(env);
  if (api == nullptr) return nullptr;
  Info* found = nullptr;
  const int status = query(api, wanted, &found);
  if (status != 0 && status != -ENODATA) return fail_with(env, api, "fi_getinfo", status);
  const InfoPointer owned(found, FreeInfo{api});
  if (napi_create_array(env, &list) != napi_ok) return nullptr;
  uint32_t count = 0;
  for (const Info* each = found; each != nullptr; each = each->next) {
    napi_value object = describe(env, *each);
    if (object == nullptr || napi_set_element(env, list, count++, object) != napi_ok) return nullptr;
  }
  return list;
}

/// ofiOpen(provider, device, addressFormat, transmits, receives, trafficClass, ordered): { handle, … as of ofiDevices }. Throws ENODATA
/// when there is nothing of the kind.
napi_value ofi_open(napi_env env, napi_callback_info info) {
  napi_value values[7];
  char provider[kNameBytes], name[kNameBytes];
  Wanted wanted{};
  uint32_t format, service;
  if (!arguments(env, info, values) || !get_wanted(env, values[0], values[1], provider, name, wanted) || !get_index(env, values[2], 0x1p32, format) ||
      !get_index(env, values[3], kDepthMax, wanted.transmits) || !get_index(env, values[4], kDepthMax, wanted.receives) ||
      !get_index(env, values[5], 256, service) || !shoal::get(env, values[6], wanted.ordered)) {
    return fail_arguments(env);
  }
  const Api* api = library(env);
  if (api == nullptr) return nullptr;
  // The upper six bits of IP's service byte are the traffic class.
  if (service != 0) wanted.traffic_class = kTcDscp | service >> 2;
  Info* found = nullptr;
  int status = query(api, wanted, &found);
  if (status != 0) return fail_with(env, api, "fi_getinfo", status);
  const InfoPointer owned(found, FreeInfo{api});
  while (found != nullptr && found->addr_format != format) found = found->next;
  Info* chosen = found == nullptr ? nullptr : api->dupinfo(found);
  if (chosen == nullptr) return fail_with(env, api, "fi_getinfo", found == nullptr ? -ENODATA : -ENOMEM);
  auto* device = new Device(api, chosen);
  const SignalGuard guard;
  const char* call = "fi_fabric";
  status = api->fabric(chosen->fabric_attr, device->fabric.out(), nullptr);
  if (status == 0) {
    call = "fi_domain";
    status = device->fabric->ops->domain(device->fabric.get(), chosen, device->domain.out(), nullptr);
  }
  napi_value object = status == 0 ? describe(env, *chosen) : nullptr;
  if (object == nullptr) {
    device->unreference();
    return status == 0 ? nullptr : fail_with(env, api, call, status);
  }
  napi_value handle = to_handle(env, device);
  if (handle != nullptr) set_property(env, object, "handle", handle);
  return handle == nullptr ? nullptr : object;
}

// ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────────

/// A second mapping of the pages at `data`, so that they stay as long as a device may touch them; null where memory is not shared.
uint8_t* map_again(uint8_t* data, size_t bytes) {
  void* again = mremap(data, 0, bytes, MREMAP_MAYMOVE);
  return again == MAP_FAILED ? nullptr : static_cast<uint8_t*>(again);
}

/// ofiRegister(device, view, remote, key): { handle, address, key }. `remote`: peers write to it, under `key` unless the provider chooses;
/// else the device reads it. The caller keeps the view's buffer until `ofiRelease`.
napi_value ofi_register(napi_env env, napi_callback_info info) {
  napi_value values[4], object, address, key;
  Device* device;
  Bytes view;
  bool remote;
  uint64_t wanted_key;
  if (!arguments(env, info, values) || !get_external(env, values[0], device) || !shoal::get(env, values[1], view) || !shoal::get(env, values[2], remote) ||
      !get(env, values[3], wanted_key) || view.size == 0 || !device->usable()) {
    return fail_arguments(env);
  }
  auto* registration = new Registration(device);
  registration->data = view.data;
  registration->bytes = view.size;
  if (remote) {
    uint8_t* again = map_again(view.data, view.size);
    if (again == nullptr && errno == ENOMEM) {
      registration->unreference();
      return fail_with(env, device->api, "mremap", -ENOMEM);
    }
    registration->own_mapping = again != nullptr;
    if (again != nullptr) registration->data = again;
  }
  Domain* domain = device->domain.get();
  const uint64_t access = remote ? kRemoteWrite : kSend | kWrite;
  const int status = domain->mr->reg(&domain->fid, registration->data, registration->bytes, access, 0, device->chooses_keys() ? 0 : wanted_key, 0,
                                     registration->memory.out(), nullptr);
  if (status != 0) {
    registration->unreference();
    return fail_with(env, device->api, "fi_mr_reg", status);
  }
  const uint64_t base = device->virtual_addresses() ? reinterpret_cast<uint64_t>(registration->data) : 0;
  if (napi_create_object(env, &object) != napi_ok || napi_create_bigint_uint64(env, base, &address) != napi_ok ||
      napi_create_bigint_uint64(env, registration->memory->key, &key) != napi_ok) {
    registration->unreference();
    return nullptr;
  }
  napi_value handle = to_handle(env, registration);
  if (handle == nullptr) return nullptr;
  set_property(env, object, "handle", handle);
  set_property(env, object, "address", address);
  set_property(env, object, "key", key);
  return object;
}

/// ofiRevoke(registration): later writes to it fail. One that has begun may still land in its pages.
napi_value ofi_revoke(napi_env env, napi_callback_info info) {
  napi_value values[1];
  Registration* registration;
  if (!arguments(env, info, values) || !get_external(env, values[0], registration)) return fail_arguments(env);
  registration->revoke();
  return nullptr;
}

/// ofiRelease(registration): nobody is writing to it any more.
napi_value ofi_release(napi_env env, napi_callback_info info) {
  napi_value values[1];
  Registration* registration;
  if (!arguments(env, info, values) || !get_external(env, values[0], registration)) return fail_arguments(env);
  registration->release();
  return nullptr;
}

// ── endpoints ────────────────────────────────────────────────────────────────────────────────────────────────────────

/// Sets the place where an endpoint listens: an address of the device's format with any port, or a name. Empty: as the provider likes.
bool set_source(Info& info, const char* source) {
  if (source[0] == '\0') return true;
  void* address = nullptr;
  size_t bytes = 0;
  if (info.addr_format == kSockaddrIn) {
    auto* in = static_cast<sockaddr_in*>(std::calloc(1, bytes = sizeof(sockaddr_in)));
    address = in;
    if (in == nullptr || inet_pton(AF_INET, source, &in->sin_addr) != 1) return std::free(address), false;
    in->sin_family = AF_INET;
  } else if (info.addr_format == kSockaddrIn6) {
    auto* in = static_cast<sockaddr_in6*>(std::calloc(1, bytes = sizeof(sockaddr_in6)));
    address = in;
    if (in == nullptr || inet_pton(AF_INET6, source, &in->sin6_addr) != 1) return std::free(address), false;
    in->sin6_family = AF_INET6;
  } else if (info.addr_format == kAddrStr) {
    bytes = std::strlen(source) + 1;
    address = strdup(source);
  }
  if (address == nullptr) return false;
  std::free(info.src_addr);
  info.src_addr = address;
  info.src_addrlen = bytes;
  return true;
}

int register_area(Device& device, uint8_t* data, size_t bytes, uint64_t access, Held<Mr>& out) {
  if (!device.registers_local()) return 0;
  Domain* domain = device.domain.get();
  return domain->mr->reg(&domain->fid, data, bytes, access, 0, reinterpret_cast<uint64_t>(data), 0, out.out(), nullptr);
}

/// Room for the file that `shm` makes in /dev/shm for an endpoint. The file is sparse: a page without room would end the process with SIGBUS, then or
/// much later. While one of these lives, no other process of Shoal makes such a file, so that the room that it finds stays.
class SharedFileRoom {
 public:
  explicit SharedFileRoom(const Info& info) {
    if (info.fabric_attr->prov_name == nullptr || std::strcmp(info.fabric_attr->prov_name, "shm") != 0) return;
    folder_ = open(kFolder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const timespec pause{0, 10'000'000};
    for (int tries = 0; folder_ >= 0 && flock(folder_, LOCK_EX | LOCK_NB) != 0 && tries < kLockTries; tries++) nanosleep(&pause, nullptr);
  }
  ~SharedFileRoom() {
    if (folder_ >= 0) close(folder_);
  }
  SharedFileRoom(const SharedFileRoom&) = delete;
  SharedFileRoom& operator=(const SharedFileRoom&) = delete;

  /// Null when there is room for one more file, or what is missing.
  const char* missing() const {
    struct statvfs place {};
    if (folder_ < 0 || fstatvfs(folder_, &place) != 0) return nullptr;
    const uint64_t wanted = file_bytes(), free = static_cast<uint64_t>(place.f_bavail) * place.f_frsize;
    if (free >= wanted) return nullptr;
    static thread_local char text[128];
    std::snprintf(text, sizeof text, "a file of %llu bytes in %s, which has room for %llu", static_cast<unsigned long long>(wanted), kFolder,
                  static_cast<unsigned long long>(free));
    return text;
  }

  /// Gives all of the file its pages. False when they are not there.
  bool reserve(const char* name) const {
    const char* last = std::strrchr(name, '/');
    const int file = folder_ < 0 ? -1 : openat(folder_, last == nullptr ? name : last + 1, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0) return true;
    struct stat status {};
    const bool is_known = fstat(file, &status) == 0 && S_ISREG(status.st_mode);
    if (is_known) file_bytes() = std::max<uint64_t>(file_bytes(), static_cast<uint64_t>(status.st_size));
    const bool is_whole = !is_known || fallocate(file, 0, 0, status.st_size) == 0 || errno != ENOSPC;
    close(file);
    return is_whole;
  }

 private:
  static constexpr const char* kFolder = "/dev/shm";
  static constexpr int kLockTries = 200;
  /// The size of such files: as libfabric 1.17 makes them, or as they were found to be.
  static std::atomic<uint64_t>& file_bytes() {
    static std::atomic<uint64_t> bytes{16 << 20};
    return bytes;
  }
  int folder_ = -1;
};

/// The name of the call that failed, with its status; null when none did.
const char* open_endpoint(Endpoint& endpoint, Info* info, int& status) {
  Channel& channel = *endpoint.channel;
  Device& device = *channel.device;
  Domain* domain = device.domain.get();
  const auto failed = [&status](int result) { return (status = result) != 0; };
  if (failed(register_area(device, endpoint.receive_area, endpoint.receive_count * endpoint.slot_bytes, kRecv, channel.receive_memory)) ||
      failed(register_area(device, endpoint.send_area, endpoint.transmit_count * endpoint.slot_bytes, kSend, channel.send_memory))) {
    return "fi_mr_reg";
  }
  CqAttr completions{};
  completions.size = endpoint.receive_count * 2 + endpoint.transmit_count;
  completions.format = kCqFormatData;
  completions.wait_obj = kWaitFd;
  if (domain->ops->cq_open(domain, &completions, channel.completions.out(), nullptr) != 0) {
    completions.wait_obj = kWaitNone;
    if (failed(domain->ops->cq_open(domain, &completions, channel.completions.out(), nullptr))) return "fi_cq_open";
  } else if (channel.completions->fid.ops->control(&channel.completions->fid, kGetWait, &endpoint.wait_fd) != 0) {
    endpoint.wait_fd = -1;
  }
  AvAttr addresses{};
  addresses.type = kAvTable;
  addresses.count = 1;
  if (failed(domain->ops->av_open(domain, &addresses, channel.addresses.out(), nullptr))) return "fi_av_open";
  if (failed(domain->ops->endpoint(domain, info, channel.ep.out(), nullptr))) return "fi_endpoint";
  Fid* fid = &channel.ep->fid;
  if (failed(fid->ops->bind(fid, &channel.addresses->fid, 0)) || failed(fid->ops->bind(fid, &channel.completions->fid, kSend | kRecv))) {
    return "fi_ep_bind";
  }
  const SharedFileRoom room(*info);
  if (const char* missing = room.missing()) return status = -ENOSPC, missing;
  if (failed(fid->ops->control(fid, kEnable, nullptr))) return "fi_enable";
  char name[kAddressBytes] = "";
  size_t bytes = sizeof name - 1;
  const bool is_named = channel.ep->cm->getname(fid, name, &bytes) == 0;
  return is_named && !room.reserve(name) ? (status = -ENOSPC, "fallocate") : nullptr;
}

/// ofiEndpoint(device, source, slotBytes, receiveArea, sendArea): { handle, name, waitFd }. The areas are rows of slots and are kept.
/// waitFd: readable when there may be something to poll; −1 where the provider has none.
napi_value ofi_endpoint(napi_env env, napi_callback_info info) {
  napi_value values[5], object, name_array, name_view;
  Device* device;
  char source[kNameBytes];
  size_t slot_bytes;
  Bytes receive_area, send_area;
  if (!arguments(env, info, values) || !get_external(env, values[0], device) || !get_text(env, values[1], source) ||
      !get_whole(env, values[2], 64, 1 << 24, slot_bytes) || !shoal::get(env, values[3], receive_area) || !shoal::get(env, values[4], send_area) ||
      receive_area.size < slot_bytes || receive_area.size / slot_bytes > kDepthMax || send_area.size < slot_bytes ||
      send_area.size / slot_bytes > kDepthMax || !device->usable()) {
    return fail_arguments(env);
  }
  const Api* api = device->api;
  const InfoPointer own(api->dupinfo(device->info.get()), FreeInfo{api});
  if (own == nullptr) return fail_with(env, api, "fi_dupinfo", -ENOMEM);
  if (!set_source(*own, source)) return fail_arguments(env);
  auto* endpoint = new Endpoint(device);
  endpoint->slot_bytes = slot_bytes;
  endpoint->receive_area = receive_area.data;
  endpoint->send_area = send_area.data;
  endpoint->receive_count = static_cast<uint32_t>(receive_area.size / slot_bytes);
  endpoint->transmit_count = static_cast<uint32_t>(send_area.size / slot_bytes);
  endpoint->receives.reset(new Context[endpoint->receive_count]());
  endpoint->transmits.reset(new Context[endpoint->transmit_count]());
  const SignalGuard guard;
  int status = 0;
  const char* call = open_endpoint(*endpoint, own.get(), status);
  uint8_t name[kAddressBytes];
  size_t name_bytes = sizeof name;
  if (call == nullptr && (status = endpoint->channel->ep->cm->getname(&endpoint->channel->ep->fid, name, &name_bytes)) != 0) call = "fi_getname";
  if (call != nullptr) {
    endpoint->unreference();
    return fail_with(env, api, call, status);
  }
  endpoint->channel->announce(name, name_bytes);
  void* copied = nullptr;
  if (napi_create_reference(env, values[3], 1, &endpoint->areas[0]) != napi_ok || napi_create_reference(env, values[4], 1, &endpoint->areas[1]) != napi_ok ||
      napi_create_object(env, &object) != napi_ok || napi_create_arraybuffer(env, name_bytes, &copied, &name_array) != napi_ok ||
      napi_create_typedarray(env, napi_uint8_array, name_bytes, name_array, 0, &name_view) != napi_ok) {
    endpoint->close(env);
    endpoint->unreference();
    return fail(env, "EINVAL", "an endpoint cannot be handed over");
  }
  std::memcpy(copied, name, name_bytes);
  const int wait_fd = endpoint->wait_fd;
  napi_value handle = to_handle(env, endpoint);
  if (handle == nullptr) return nullptr;
  set_property(env, object, "handle", handle);
  set_property(env, object, "name", name_view);
  set_number(env, object, "waitFd", wait_fd);
  return object;
}

/// Reads an endpoint that is open.
bool get_open(napi_env env, napi_value value, Endpoint*& out) { return get_external(env, value, out) && out->channel != nullptr; }

/// ofiPeer(endpoint, name): status. Whom it talks to, once.
napi_value ofi_peer(napi_env env, napi_callback_info info) {
  napi_value values[2];
  Endpoint* endpoint;
  Bytes name;
  if (!arguments(env, info, values) || !get_open(env, values[0], endpoint) || !shoal::get(env, values[1], name) || name.size == 0 ||
      name.size >= kAddressBytes || endpoint->peer != UINT64_MAX) {
    return fail_arguments(env);
  }
  // Providers read a whole address of theirs, or up to a zero.
  alignas(16) uint8_t padded[kAddressBytes] = {};
  std::memcpy(padded, name.data, name.size);
  return number(env, endpoint->channel->meet(padded, endpoint->peer));
}

/// ofiReceive(endpoint, slot): status. The slot is the endpoint's until it is reported received.
napi_value ofi_receive(napi_env env, napi_callback_info info) {
  napi_value values[2];
  Endpoint* endpoint;
  uint32_t slot;
  if (!arguments(env, info, values) || !get_open(env, values[0], endpoint) || !get_index(env, values[1], endpoint->receive_count, slot)) {
    return fail_arguments(env);
  }
  void* desc = endpoint->channel->receive_memory.get() == nullptr ? nullptr : endpoint->channel->receive_memory->mem_desc;
  uint8_t* data = endpoint->receive_area + slot * endpoint->slot_bytes;
  Ep* ep = endpoint->channel->ep.get();
  return number(env, static_cast<double>(ep->msg->recv(ep, data, endpoint->slot_bytes, desc, UINT64_MAX, &endpoint->receives[slot])));
}

/// ofiSend(endpoint, slot, bytes): status. Of the slot with that number in the send area.
napi_value ofi_send(napi_env env, napi_callback_info info) {
  napi_value values[3];
  Endpoint* endpoint;
  uint32_t slot;
  size_t bytes;
  if (!arguments(env, info, values) || !get_open(env, values[0], endpoint) || !get_index(env, values[1], endpoint->transmit_count, slot) ||
      !get_whole(env, values[2], 1, static_cast<double>(endpoint->slot_bytes), bytes)) {
    return fail_arguments(env);
  }
  void* desc = endpoint->channel->send_memory.get() == nullptr ? nullptr : endpoint->channel->send_memory->mem_desc;
  uint8_t* data = endpoint->send_area + slot * endpoint->slot_bytes;
  Ep* ep = endpoint->channel->ep.get();
  return number(env, static_cast<double>(ep->msg->send(ep, data, bytes, desc, endpoint->peer, &endpoint->transmits[slot])));
}

/// ofiWrite(endpoint, slot, source, offset, bytes, registration, address, key, targetOffset, data, delivered): status. `slot` names the
/// operation; `data` is announced with it, −1: nothing is. `delivered`: done means that the bytes are in the target's memory.
napi_value ofi_write(napi_env env, napi_callback_info info) {
  napi_value values[11];
  Endpoint* endpoint;
  Registration* registration;
  Bytes source;
  uint32_t slot;
  size_t offset, bytes;
  uint64_t address, key, target_offset;
  int64_t data;
  bool delivered;
  if (!arguments(env, info, values) || !get_open(env, values[0], endpoint) || !get_index(env, values[1], endpoint->transmit_count, slot) ||
      !shoal::get(env, values[2], source) || !get_whole(env, values[3], 0, kMaxExact, offset) || !get_whole(env, values[4], 1, kMaxExact, bytes) ||
      offset > source.size || bytes > source.size - offset || !get_optional(env, values[5], registration) || !get(env, values[6], address) ||
      !get(env, values[7], key) || !get_whole(env, values[8], 0, kMaxExact, target_offset) || !get_whole(env, values[9], -1, kMaxExact, data) ||
      !shoal::get(env, values[10], delivered)) {
    return fail_arguments(env);
  }
  void* desc = registration == nullptr || registration->memory.get() == nullptr ? nullptr : registration->memory->mem_desc;
  Ep* ep = endpoint->channel->ep.get();
  Context* context = &endpoint->transmits[slot];
  const uint8_t* from = source.data + offset;
  const uint64_t to = address + target_offset;
  ssize_t status;
  if (delivered) {
    const iovec local{const_cast<uint8_t*>(from), bytes};
    const RmaIov remote{to, bytes, key};
    const RmaMessage message{&local, desc == nullptr ? nullptr : &desc, 1, endpoint->peer, &remote, 1, context, data < 0 ? 0 : static_cast<uint64_t>(data)};
    status = ep->rma->writemsg(ep, &message, kCompletion | kDeliveryComplete | (data < 0 ? 0 : kRemoteCqData));
  } else if (data < 0) {
    status = ep->rma->write(ep, from, bytes, desc, endpoint->peer, to, key, context);
  } else {
    status = ep->rma->writedata(ep, from, bytes, desc, static_cast<uint64_t>(data), endpoint->peer, to, key, context);
  }
  return number(env, static_cast<double>(status));
}

void put(double* event, double kind, double index, double bytes, double data) {
  event[0] = kind;
  event[1] = index;
  event[2] = bytes;
  event[3] = data;
}

/// The slot of a context of ours, or −1. Providers set pointers of their own where an event has none.
double slot_in(const std::unique_ptr<Context[]>& contexts, uint32_t count, const void* context) {
  const auto at = reinterpret_cast<uintptr_t>(context), first = reinterpret_cast<uintptr_t>(contexts.get());
  return at < first || at >= first + count * sizeof(Context) ? -1 : static_cast<double>((at - first) / sizeof(Context));
}

double received_slot(const Endpoint& endpoint, const void* context) { return slot_in(endpoint.receives, endpoint.receive_count, context); }
double transmitted_slot(const Endpoint& endpoint, const void* context) { return slot_in(endpoint.transmits, endpoint.transmit_count, context); }

void put_completion(const Endpoint& endpoint, double* event, const CqEntry& entry) {
  const double received = received_slot(endpoint, entry.op_context);
  // Some providers spend a posted receive on the announcement of a write.
  if ((entry.flags & kRemoteCqData) != 0 && (entry.flags & kRecv) == 0) return put(event, kRemoteData, received, 0, exact(entry.data));
  if (received >= 0) return put(event, kReceived, received, exact(entry.len), 0);
  const double transmitted = transmitted_slot(endpoint, entry.op_context);
  put(event, transmitted >= 0 ? kTransmitted : kFailed, transmitted, transmitted >= 0 ? 0 : EPROTO, 0);
}

void put_error(const Endpoint& endpoint, double* event, const CqError& error) {
  const double received = received_slot(endpoint, error.op_context);
  put(event, kFailed, received >= 0 ? -2 - received : transmitted_slot(endpoint, error.op_context), error.err, error.prov_errno);
}

/// ofiPoll(endpoint, events): how many there were, four words each: kind, slot, bytes or error, data. None: whoever waits for the
/// descriptor will be woken by the next. Kinds: 1 received, 2 sent or written, 3 data announced with a write (slot −1, or that of the
/// receive it took), 4 failed (slot of what was sent; −2 and less: −2 − slot of a receive; −1: of neither).
napi_value ofi_poll(napi_env env, napi_callback_info info) {
  napi_value values[2];
  Endpoint* endpoint;
  Doubles events;
  if (!arguments(env, info, values) || !get_open(env, values[0], endpoint) || !shoal::get(env, values[1], events)) return fail_arguments(env);
  const size_t room = events.size / kEventWords;
  size_t count = 0;
  Cq* cq = endpoint->channel->completions.get();
  CqEntry entries[kBatch];
  // Events that come as fast as they are taken must not keep the event loop from turning.
  for (int rounds = 0; count < room; rounds++) {
    if (rounds == kPollRounds) return number(env, count > 0 ? static_cast<double>(count) : -1);
    const ssize_t read = cq->ops->read(cq, entries, room - count < kBatch ? room - count : kBatch);
    if (read > 0) {
      for (ssize_t k = 0; k < read; k++) put_completion(*endpoint, events.data + kEventWords * count++, entries[k]);
      continue;
    }
    if (read == -kErrorAvailable) {
      CqError error{};
      if (cq->ops->readerr(cq, &error, 0) == 1) {
        put_error(*endpoint, events.data + kEventWords * count++, error);
        continue;
      }
    } else if (read != -EAGAIN && read != 0) {
      put(events.data + kEventWords * count++, kFailed, -1, static_cast<double>(-read), 0);
      break;
    }
    if (count > 0 || endpoint->wait_fd < 0) break;
    Fid* fid = &cq->fid;
    Fabric* fabric = endpoint->channel->device->fabric.get();
    if (fabric->ops->trywait(fabric, &fid, 1) != -EAGAIN) break;
  }
  return number(env, static_cast<double>(count));
}

/// ofiClose(endpoint): from now on nothing reads or writes memory for it.
napi_value ofi_close(napi_env env, napi_callback_info info) {
  napi_value values[1];
  Endpoint* endpoint;
  if (!arguments(env, info, values) || !get_external(env, values[0], endpoint)) return fail_arguments(env);
  endpoint->close(env);
  return nullptr;
}

/// ofiCloseDevice(device): nothing more can be opened on it; it closes with the last that is.
napi_value ofi_close_device(napi_env env, napi_callback_info info) {
  napi_value values[1];
  Device* device;
  if (!arguments(env, info, values) || !get_external(env, values[0], device)) return fail_arguments(env);
  device->close(env);
  return nullptr;
}

}  // namespace

void Device::leave() {
  if (--users_ > 0 || !closing_) return;
  const SignalGuard guard;
  domain.close();
  fabric.close();
}

void Device::close(napi_env) {
  if (closing_) return;
  closing_ = true;
  users_++;
  leave();
}

void Registration::revoke() {
  if (revoked_) return;
  revoked_ = true;
  memory.close();
  device->leave();
}

void Registration::release() {
  revoke();
  if (own_mapping) munmap(data, bytes);
  own_mapping = false;
}

namespace {

/// Channels with names that other endpoints of this process find, as libfabric keeps them.
struct Named {
  std::mutex lock;
  Channel* first = nullptr;
};
Named& named() {
  static Named instance;
  return instance;
}

}  // namespace

void Channel::announce(const uint8_t* name, size_t bytes) {
  if (device->info->addr_format != kAddrStr || bytes > sizeof name_) return;
  const std::lock_guard<std::mutex> hold(named().lock);
  std::memcpy(name_, name, bytes);
  announced_ = true;
  next_ = named().first;
  named().first = this;
}

int Channel::meet(const uint8_t* name, uint64_t& peer) {
  const SignalGuard guard;
  const std::lock_guard<std::mutex> hold(named().lock);
  const int inserted = addresses->ops->insert(addresses.get(), name, 1, &peer, 0, nullptr);
  if (inserted != 1) return inserted < 0 ? inserted : -EINVAL;
  for (Channel* each = named().first; each != nullptr && met_ == nullptr; each = each->next_) {
    if (each != this && std::memcmp(each->name_, name, sizeof name_) == 0) met_ = each;
  }
  if (met_ != nullptr) met_->users_++;
  return 0;
}

void Channel::leave() {
  const SignalGuard guard;
  const std::lock_guard<std::mutex> hold(named().lock);
  Channel* met = met_;
  met_ = nullptr;
  drop(this);
  if (met != nullptr) drop(met);
}

/// Must be called with the lock held, so that no thread finds the channel in between.
void Channel::drop(Channel* channel) {
  if (--channel->users_ > 0) return;
  if (channel->announced_) {
    Channel** at = &named().first;
    while (*at != channel) at = &(*at)->next_;
    *at = channel->next_;
  }
  delete channel;
}

Channel::~Channel() {
  ep.close();
  addresses.close();
  completions.close();
  send_memory.close();
  receive_memory.close();
  device->leave();
}

void Endpoint::close(napi_env env) {
  if (channel == nullptr) return;
  channel->leave();
  channel = nullptr;
  for (napi_ref& area : areas) {
    if (area != nullptr && env != nullptr) napi_delete_reference(env, area);
    area = nullptr;
  }
}

}  // namespace ofi

void export_ofi(napi_env env, napi_value exports) {
  using namespace ofi;
  set_function(env, exports, "ofiVersion", ofi_version);
  set_function(env, exports, "ofiDevices", ofi_devices);
  set_function(env, exports, "ofiOpen", ofi_open);
  set_function(env, exports, "ofiRegister", ofi_register);
  set_function(env, exports, "ofiRevoke", ofi_revoke);
  set_function(env, exports, "ofiRelease", ofi_release);
  set_function(env, exports, "ofiEndpoint", ofi_endpoint);
  set_function(env, exports, "ofiPeer", ofi_peer);
  set_function(env, exports, "ofiReceive", ofi_receive);
  set_function(env, exports, "ofiSend", ofi_send);
  set_function(env, exports, "ofiWrite", ofi_write);
  set_function(env, exports, "ofiPoll", ofi_poll);
  set_function(env, exports, "ofiClose", ofi_close);
  set_function(env, exports, "ofiCloseDevice", ofi_close_device);
}

}  // namespace shoal
