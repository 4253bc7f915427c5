// Encrypted records of a connection (src/base/secure/records.ts has the format and the JavaScript twin), by the EVP functions of the
// OpenSSL in this process. Where it exports none there are no records here.
#pragma once
#include <node_api.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace shoal {
namespace records {

constexpr size_t kLengthBytes = 2;
constexpr size_t kTagBytes = 16;
constexpr size_t kKeyBytes = 32;
/// Most bytes of a record, its length included, and of what is sealed in it.
constexpr size_t kRecordMax = kLengthBytes + 65535;
constexpr size_t kPlainMax = 65535 - kTagBytes;

/// Numbers as in aeads of src/base/secure/noise.ts.
enum Aead : uint32_t { kAes, kChaCha, kAeads };

inline size_t sealed_bytes(size_t bytes) { return bytes + (bytes + kPlainMax - 1) / kPlainMax * (kLengthBytes + kTagBytes); }

/// One direction of a connection: its key, and the number of its next record. Used by one thread at a time.
class Direction {
 public:
  static std::shared_ptr<Direction> make(Aead aead, const uint8_t* key, bool seals);
  ~Direction();
  Direction(const Direction&) = delete;

  /// Seals the parts as records, one behind the other. Returns the end of them; null when the library failed.
  uint8_t* seal(const iovec* parts, size_t count, uint8_t* target);

  /// Opens the next record, without its length: `bytes` with the tag. False: it is not the one that was sealed, and the target is zeros.
  bool open(const uint8_t* sealed, size_t bytes, uint8_t* target);

  bool seals() const { return seals_; }

 private:
  Direction(Aead aead, bool seals) : aead_(aead), seals_(seals) {}

  /// Takes the next nonce, and the next key where its time has come.
  bool next();
  bool start(bool sealing, const uint8_t* key, uint64_t counter);
  bool change_key();

  Aead aead_;
  bool seals_;
  void* context_ = nullptr;
  uint8_t key_[kKeyBytes] = {};
  uint64_t records_ = 0;
};

/// Both directions of a connection.
struct Link {
  std::shared_ptr<Direction> sealer, opener;
};

/// The records of a socket of this process, whichever descriptor it has; null: what is sent on it is plain.
std::shared_ptr<Link> link_of(int fd);
/// A further descriptor of a socket has been made, or is about to be closed: with the last one its records are forgotten.
void retain_link(int fd);
void release_link(int fd);

}  // namespace records

/// Adds functions to the addon's exports.
void export_records(napi_env env, napi_value exports);

}  // namespace shoal
