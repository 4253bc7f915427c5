// Moves bytes that another CPU may have written last.
//
//   copy    target ← source
//   shift   result ← through ← next      in one loop
//
// Such a line comes from the other CPU's cache in about 0.1 µs, so the number of lines on their way counts. The hardware follows
// a stream to the end of its page only, so these loops ask for lines themselves, into the second-level cache, where they do not
// keep the few places of the first one occupied.
//
// `through` is memory that another CPU wrote last and will read next. Its lines are read and written by this CPU at once, so that they come
// over modified and stay so: copying out first and in later would fetch them for reading and then ask for ownership once more.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace shoal {

/// Bytes that are loaded before any of them is stored.
constexpr size_t kMoveBytes = 128;
constexpr size_t kMoveAheadBytes = 2048;

/// Part of a line, at any alignment.
typedef uint8_t MoveVector __attribute__((vector_size(16), aligned(1), may_alias));
struct Moved {
  static constexpr size_t kVectors = kMoveBytes / sizeof(MoveVector);
  MoveVector vectors[kVectors];

  explicit Moved(const uint8_t* from) {
    for (size_t k = 0; k < kVectors; k++) vectors[k] = reinterpret_cast<const MoveVector*>(from)[k];
  }
  void store(uint8_t* to) const {
    for (size_t k = 0; k < kVectors; k++) reinterpret_cast<MoveVector*>(to)[k] = vectors[k];
  }
};

/// Asks for the lines `kMoveAheadBytes` after those at `at`, within the range only: another CPU may work on bytes beyond.
inline void prefetch_moved(const uint8_t* bytes, size_t at, size_t count) {
  if (count - at < kMoveAheadBytes + kMoveBytes) return;
  for (size_t line = 0; line < kMoveBytes; line += 64) __builtin_prefetch(bytes + at + kMoveAheadBytes + line, 0, 2);
}

/// Below this size no line is far enough ahead to be asked for, and memcpy is as fast or faster.
constexpr size_t kCopyLeastBytes = kMoveAheadBytes + kMoveBytes;
/// From this size on memcpy is as fast, and knows when to go past the caches.
constexpr size_t kCopyLargeBytes = 1 << 20;

/// Copies between ranges that do not overlap.
inline void copy_bytes(uint8_t* target, const uint8_t* source, size_t count) {
  size_t at = 0;
  if (count >= kCopyLeastBytes && count < kCopyLargeBytes) {
    for (; at + kMoveBytes <= count; at += kMoveBytes) {
      prefetch_moved(source, at, count);
      Moved(source + at).store(target + at);
    }
  }
  // An empty range may have a null address, which memcpy does not accept.
  if (at < count) std::memcpy(target + at, source + at, count - at);
}

/// Shifts bytes between ranges that do not overlap.
inline void shift_bytes(uint8_t* result, uint8_t* through, const uint8_t* next, size_t count) {
  size_t at = 0;
  for (; at + kMoveBytes <= count; at += kMoveBytes) {
    prefetch_moved(through, at, count);
    const Moved leaving(through + at), coming(next + at);
    coming.store(through + at);
    leaving.store(result + at);
  }
  std::memcpy(result + at, through + at, count - at);
  std::memcpy(through + at, next + at, count - at);
}

}  // namespace shoal
