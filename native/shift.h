// Moving bytes on by one place: result ← through ← next, in one loop.
//
// `through` is memory that another core wrote last and will read next. Its lines are read and written by this core at once, so
// that they come over modified and stay so: copying out first and in later would fetch them for reading and then ask for
// ownership once more.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace shoal {

inline void shift_bytes(uint8_t* __restrict result, uint8_t* __restrict through, const uint8_t* __restrict next, size_t bytes) {
  constexpr size_t kLine = 64;
  size_t at = 0;
  for (; at + kLine <= bytes; at += kLine) {
    uint8_t leaving[kLine];
    std::memcpy(leaving, through + at, kLine);
    std::memcpy(through + at, next + at, kLine);
    std::memcpy(result + at, leaving, kLine);
  }
  if (at == bytes) return;
  std::memcpy(result + at, through + at, bytes - at);
  std::memcpy(through + at, next + at, bytes - at);
}

}  // namespace shoal
