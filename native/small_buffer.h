// An array whose length is known late and is nearly always small: on the stack up to N elements, else on the heap.
#pragma once
#include <cstddef>
#include <cstdlib>

namespace shoal {

template <class T, size_t N>
class SmallBuffer {
 public:
  explicit SmallBuffer(size_t size) : data_(size <= N ? inline_ : static_cast<T*>(std::aligned_alloc(64, (size * sizeof(T) + 63) / 64 * 64))) {
    if (data_ == nullptr) std::abort();
  }
  ~SmallBuffer() {
    if (data_ != inline_) std::free(data_);
  }
  SmallBuffer(const SmallBuffer&) = delete;
  SmallBuffer& operator=(const SmallBuffer&) = delete;
  T& operator[](size_t index) { return data_[index]; }
  T* data() { return data_; }

 private:
  alignas(64) T inline_[N];
  T* data_;
};

}  // namespace shoal
