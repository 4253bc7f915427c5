#include "records.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <cstring>
#include <map>
#include <mutex>
#include <new>

#include "napi_args.h"

namespace shoal {
namespace records {
namespace {

constexpr uint64_t kRecordsPerKey = 1u << 20;
constexpr int kSetNonceBytes = 0x9, kGetTag = 0x10, kSetTag = 0x11;
constexpr size_t kNonceBytes = 12;

/// Functions of OpenSSL 1.1 and 3, which have not changed their signatures.
struct Library {
  void* (*context_new)();
  void (*context_free)(void*);
  int (*control)(void*, int, int, void*);
  const void* (*aes)();
  const void* (*chacha)();
  int (*init)(void*, const void*, void*, const unsigned char*, const unsigned char*, int);
  int (*update)(void*, unsigned char*, int*, const unsigned char*, int);
  int (*finish)(void*, unsigned char*, int*);
  bool complete;
};

template <class Function>
bool resolve(Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
  return function != nullptr;
}

const Library& library() {
  static const Library found = [] {
    Library each{};
    each.complete = resolve(each.context_new, "EVP_CIPHER_CTX_new") && resolve(each.context_free, "EVP_CIPHER_CTX_free") &&
                    resolve(each.control, "EVP_CIPHER_CTX_ctrl") && resolve(each.aes, "EVP_aes_256_gcm") &&
                    resolve(each.chacha, "EVP_chacha20_poly1305") && resolve(each.init, "EVP_CipherInit_ex") &&
                    resolve(each.update, "EVP_CipherUpdate") && resolve(each.finish, "EVP_CipherFinal_ex");
    return each;
  }();
  return found;
}

/// 32 zero bits and the counter: big-endian for AES, little-endian for ChaCha20.
void write_nonce(Aead aead, uint64_t counter, uint8_t (&nonce)[kNonceBytes]) {
  std::memset(nonce, 0, 4);
  for (int k = 0; k < 8; k++) nonce[aead == kAes ? 11 - k : 4 + k] = static_cast<uint8_t>(counter >> 8 * k);
}

}  // namespace

std::shared_ptr<Direction> Direction::make(Aead aead, const uint8_t* key, bool seals) {
  const Library& evp = library();
  if (!evp.complete) return nullptr;
  std::shared_ptr<Direction> made(new Direction(aead, seals));
  std::memcpy(made->key_, key, kKeyBytes);
  made->context_ = evp.context_new();
  const void* cipher = aead == kAes ? evp.aes() : evp.chacha();
  if (made->context_ == nullptr || evp.init(made->context_, cipher, nullptr, nullptr, nullptr, 1) != 1 ||
      evp.control(made->context_, kSetNonceBytes, kNonceBytes, nullptr) != 1 || !made->start(seals, key, 0))
    return nullptr;
  return made;
}

Direction::~Direction() {
  if (context_ != nullptr) library().context_free(context_);
  // Freed memory must not keep the key. The compiler may leave out a plain memset.
  volatile uint8_t* key = key_;
  for (size_t k = 0; k < kKeyBytes; k++) key[k] = 0;
}

bool Direction::start(bool sealing, const uint8_t* key, uint64_t counter) {
  uint8_t nonce[kNonceBytes];
  write_nonce(aead_, counter, nonce);
  return library().init(context_, nullptr, nullptr, key, nonce, sealing ? 1 : 0) == 1;
}

/// REKEY of the framework: the first bytes of zeros, sealed with the last nonce.
bool Direction::change_key() {
  const uint8_t zeros[kKeyBytes] = {};
  uint8_t key[kKeyBytes];
  int written = 0;
  if (!start(true, key_, UINT64_MAX) || library().update(context_, key, &written, zeros, kKeyBytes) != 1) return false;
  std::memcpy(key_, key, kKeyBytes);
  return start(seals_, key_, 0);
}

bool Direction::next() {
  if (records_ == UINT64_MAX || (records_ > 0 && records_ % kRecordsPerKey == 0 && !change_key())) return false;
  return start(seals_, nullptr, records_++);
}

uint8_t* Direction::seal(const iovec* parts, size_t count, uint8_t* target) {
  const Library& evp = library();
  size_t left = 0, offset = 0;
  for (size_t k = 0; k < count; k++) left += parts[k].iov_len;
  while (left > 0) {
    const size_t plain = left < kPlainMax ? left : kPlainMax;
    target[0] = static_cast<uint8_t>((plain + kTagBytes) >> 8);
    target[1] = static_cast<uint8_t>(plain + kTagBytes);
    target += kLengthBytes;
    if (!next()) return nullptr;
    int written = 0;
    for (size_t wanted = plain; wanted > 0;) {
      const size_t there = parts->iov_len - offset, taken = there < wanted ? there : wanted;
      if (taken > 0 && evp.update(context_, target, &written, static_cast<const uint8_t*>(parts->iov_base) + offset, static_cast<int>(taken)) != 1)
        return nullptr;
      target += taken;
      wanted -= taken;
      offset += taken;
      if (offset == parts->iov_len) {
        parts++;
        offset = 0;
      }
    }
    if (evp.finish(context_, target, &written) != 1 || evp.control(context_, kGetTag, kTagBytes, target) != 1) return nullptr;
    target += kTagBytes;
    left -= plain;
  }
  return target;
}

bool Direction::open(const uint8_t* sealed, size_t bytes, uint8_t* target) {
  const Library& evp = library();
  if (bytes <= kTagBytes) return false;
  const size_t plain = bytes - kTagBytes;
  uint8_t tag[kTagBytes], rest[kTagBytes];
  int written = 0;
  std::memcpy(tag, sealed + plain, kTagBytes);
  const bool opened = next() && evp.update(context_, target, &written, sealed, static_cast<int>(plain)) == 1 &&
                      evp.control(context_, kSetTag, kTagBytes, tag) == 1 && evp.finish(context_, rest, &written) == 1;
  if (!opened) std::memset(target, 0, plain);
  return opened;
}

// ── sockets ─────────────────────────────────────────────────────────────────────────────────────────────────────────

namespace {

struct Bound {
  std::shared_ptr<Link> link;
  int descriptors;
};

struct Links {
  std::mutex mutex;
  /// Records of sockets. The key is the socket's inode, which all its descriptors share, in all threads.
  std::map<ino_t, Bound> by_socket;
};

/// Never destroyed: threads may end after the process has begun to.
Links& links() {
  static Links* all = new Links();
  return *all;
}

ino_t socket_of(int fd) {
  struct stat status;
  return fstat(fd, &status) == 0 ? status.st_ino : 0;
}

}  // namespace

std::shared_ptr<Link> link_of(int fd) {
  std::lock_guard<std::mutex> guard(links().mutex);
  const auto found = links().by_socket.find(socket_of(fd));
  return found == links().by_socket.end() ? nullptr : found->second.link;
}

void retain_link(int fd) {
  std::lock_guard<std::mutex> guard(links().mutex);
  const auto found = links().by_socket.find(socket_of(fd));
  if (found != links().by_socket.end()) found->second.descriptors++;
}

void release_link(int fd) {
  std::lock_guard<std::mutex> guard(links().mutex);
  const auto found = links().by_socket.find(socket_of(fd));
  if (found != links().by_socket.end() && --found->second.descriptors == 0) links().by_socket.erase(found);
}

// ── functions of the addon ──────────────────────────────────────────────────────────────────────────────────────────

namespace {

using Handle = std::shared_ptr<Direction>;

/// createRecords(aead, key, seals): undefined where this process has no OpenSSL to be found.
napi_value create_records(napi_env env, napi_callback_info info) {
  napi_value values[3], handle;
  uint32_t aead;
  Bytes key;
  bool seals;
  if (!arguments(env, info, values) || !get_index(env, values[0], kAeads, aead) || !get(env, values[1], key) || key.size != kKeyBytes ||
      !get(env, values[2], seals))
    return fail_arguments(env);
  auto made = Direction::make(static_cast<Aead>(aead), key.data, seals);
  if (made == nullptr) return nullptr;
  auto* held = new Handle(std::move(made));
  const auto finalize = [](napi_env, void* data, void*) { delete static_cast<Handle*>(data); };
  if (napi_create_external(env, held, finalize, nullptr, &handle) == napi_ok) return handle;
  delete held;
  return nullptr;
}

/// sealRecords(records, source, target, at): returns the end of the records in the target.
napi_value seal_records(napi_env env, napi_callback_info info) {
  napi_value values[4], result;
  Handle* handle;
  Bytes source, target;
  size_t at;
  if (!arguments(env, info, values) || !get_external(env, values[0], handle) || !(*handle)->seals() || !get(env, values[1], source) ||
      !get(env, values[2], target) || !get_whole(env, values[3], 0, 0x1p53, at) || at > target.size || sealed_bytes(source.size) > target.size - at)
    return fail_arguments(env);
  const iovec part{source.data, source.size};
  const uint8_t* end = (*handle)->seal(&part, 1, target.data + at);
  if (end == nullptr) return fail(env, "EIO", "OpenSSL cannot seal a record");
  return napi_create_double(env, static_cast<double>(end - target.data), &result) == napi_ok ? result : nullptr;
}

/// openRecord(records, sealed, target)
napi_value open_record(napi_env env, napi_callback_info info) {
  napi_value values[3], result;
  Handle* handle;
  Bytes sealed, target;
  if (!arguments(env, info, values) || !get_external(env, values[0], handle) || (*handle)->seals() || !get(env, values[1], sealed) ||
      !get(env, values[2], target) || sealed.size != target.size + kTagBytes || sealed.size > kRecordMax)
    return fail_arguments(env);
  return napi_get_boolean(env, (*handle)->open(sealed.data, sealed.size, target.data), &result) == napi_ok ? result : nullptr;
}

/// bindRecords(fd, sealer, opener): of a descriptor that takeSocket has made.
napi_value bind_records(napi_env env, napi_callback_info info) {
  napi_value values[3];
  int fd;
  Handle *sealer, *opener;
  if (!arguments(env, info, values) || !get_descriptor(env, values[0], fd) || !get_external(env, values[1], sealer) ||
      !get_external(env, values[2], opener) || !(*sealer)->seals() || (*opener)->seals())
    return fail_arguments(env);
  std::lock_guard<std::mutex> guard(links().mutex);
  links().by_socket[socket_of(fd)] = Bound{std::make_shared<Link>(Link{*sealer, *opener}), 1};
  return nullptr;
}

}  // namespace
}  // namespace records

void export_records(napi_env env, napi_value exports) {
  using namespace records;
  set_function(env, exports, "createRecords", create_records);
  set_function(env, exports, "sealRecords", seal_records);
  set_function(env, exports, "openRecord", open_record);
  set_function(env, exports, "bindRecords", bind_records);
}

}  // namespace shoal
