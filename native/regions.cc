// Shared-memory regions: anonymous files (memfd) mapped into external ArrayBuffers.
//
// A region has no name anywhere: it lives while a descriptor or a mapping of it does, so that nothing is left after
// SIGKILL. Its size is sealed: nobody can shrink it under a mapping, which would turn a load into SIGBUS.
//
//   JS:   buffer (ArrayBuffer) ──┐            handle (external) ──┐
//   C++:                         └── Mapping, counted, one thread ┘── munmap and close once: at close(), else when both are collected
#include "regions.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "napi_args.h"

#ifndef MFD_CLOEXEC
#define MFD_CLOEXEC 0x0001U
#define MFD_ALLOW_SEALING 0x0002U
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef F_ADD_SEALS
#define F_ADD_SEALS 1033
#define F_GET_SEALS 1034
#define F_SEAL_SEAL 0x0001
#define F_SEAL_SHRINK 0x0002
#define F_SEAL_GROW 0x0004
#endif

namespace shoal {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

std::atomic<uint64_t> unmap_count{0};

struct Mapping {
  void* address;
  size_t length;
  int fd;  // the creator's; −1 for a mapping of another process's region
  int references;

  void release() {
    if (address != nullptr) munmap(address, length);
    if (fd >= 0) close(fd);
    address = nullptr;
    fd = -1;
  }
  void unreference() {
    if (--references > 0) return;
    release();
    delete this;
  }
};

const char* errno_name(int error) {
  switch (error) {
    case ENOMEM: return "ENOMEM";
    case ENOSPC: return "ENOSPC";
    case EFBIG: return "EFBIG";
    case EMFILE: return "EMFILE";
    case ENFILE: return "ENFILE";
    case EPERM: return "EPERM";
    case EACCES: return "EACCES";
    case ENOENT: return "ENOENT";
    case ESRCH: return "ESRCH";
    case ESTALE: return "ESTALE";
    case EINVAL: return "EINVAL";
    case ENOSYS: return "ENOSYS";
    default: return "EOTHER";
  }
}

napi_value fail_errno(napi_env env, const char* call, int error) {
  char text[256];
  std::snprintf(text, sizeof text, "%s: %s", call, std::strerror(error));
  return fail(env, errno_name(error), text);
}

/// Lets a file of `length` bytes pass RLIMIT_FSIZE, which counts a memfd as a file although it is memory: lifts the soft
/// limit up to the hard one for the lifetime of this object. Threads are serialised; the limit is the whole process's.
class FileSizeLimitLift {
 public:
  explicit FileSizeLimitLift(size_t length) : lock_(mutex()) {
    if (getrlimit(RLIMIT_FSIZE, &before_) != 0 || before_.rlim_cur == RLIM_INFINITY || before_.rlim_cur >= length) return;
    rlimit lifted = before_;
    lifted.rlim_cur = before_.rlim_max;
    lifted_ = (before_.rlim_max == RLIM_INFINITY || before_.rlim_max >= length) && setrlimit(RLIMIT_FSIZE, &lifted) == 0;
    allows_ = lifted_;
  }
  ~FileSizeLimitLift() {
    if (lifted_) setrlimit(RLIMIT_FSIZE, &before_);
  }
  /// False when even the hard limit is too small: a system call would raise SIGXFSZ.
  bool allows() const { return allows_; }

 private:
  static std::mutex& mutex() {
    static std::mutex instance;
    return instance;
  }
  std::lock_guard<std::mutex> lock_;
  rlimit before_{};
  bool lifted_ = false;
  bool allows_ = true;
};

int create_memory_file() {
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  // Kernels before 6.3 do not know NOEXEC_SEAL; newer ones log a warning without it.
  const long fd = syscall(SYS_memfd_create, "shoal", flags | MFD_NOEXEC_SEAL);
  if (fd >= 0 || errno != EINVAL) return static_cast<int>(fd);
  return static_cast<int>(syscall(SYS_memfd_create, "shoal", flags));
}

/// Bytes of a huge page: one entry of the page table in place of 512.
constexpr size_t kHugePageBytes = size_t{2} << 20;

/// Maps the file at an address from which huge pages can begin. mmap chooses such a one only if the system's settings say so.
void* map_memory_file(int fd, size_t length) {
  const auto map = [&](void* at, int flags) { return mmap(at, length, PROT_READ | PROT_WRITE, MAP_SHARED | flags, fd, 0); };
  if (length < kHugePageBytes) return map(nullptr, 0);
  const size_t room = length + kHugePageBytes;
  void* reserved = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return map(nullptr, 0);
  const auto begin = reinterpret_cast<uintptr_t>(reserved);
  const uintptr_t at = (begin + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  void* address = map(reinterpret_cast<void*>(at), MAP_FIXED);
  const int error = errno;
  if (address == MAP_FAILED) {
    munmap(reserved, room);
  } else {
    if (at > begin) munmap(reserved, at - begin);
    munmap(reinterpret_cast<void*>(at + length), begin + kHugePageBytes - at);
  }
  errno = error;
  return address;
}

bool allocate_pages(int fd, size_t from, size_t length) {
  int result;
  do {
    result = fallocate(fd, 0, static_cast<off_t>(from), static_cast<off_t>(length));
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

/// Gives the file its size, a mapping and its pages, or says which call failed. The pages are huge where the kernel makes them so when asked
/// (6.1 and later), which it does only around a page that is there. Huge ones are cleared in a third of the time, and mapped at once.
const char* fill_memory_file(int fd, size_t length, void*& address) {
  const FileSizeLimitLift limit(length);
  if (!limit.allows()) {
    errno = EFBIG;
    return "RLIMIT_FSIZE";
  }
  if (ftruncate(fd, static_cast<off_t>(length)) != 0) return "ftruncate";
  address = map_memory_file(fd, length);
  if (address == MAP_FAILED) return "mmap";
  const size_t huge = length / kHugePageBytes * kHugePageBytes;
  for (size_t at = 0; at < huge; at += kHugePageBytes)
    if (!allocate_pages(fd, at, 1)) return "fallocate";
  if (huge > 0) madvise(address, huge, MADV_COLLAPSE);
  return allocate_pages(fd, 0, length) ? nullptr : "fallocate";
}

void finalize_mapping(napi_env, void*, void* hint) { static_cast<Mapping*>(hint)->unreference(); }
void finalize_handle(napi_env, void* data, void*) { static_cast<Mapping*>(data)->unreference(); }

/// Makes { buffer, handle, fd, device, inode }. Takes over the mapping and the descriptor.
napi_value to_object(napi_env env, void* address, size_t length, size_t bytes, int fd, const struct stat& status) {
  auto* mapping = new Mapping{address, length, fd, 1};
  napi_value object, buffer, handle;
  if (napi_create_external(env, mapping, finalize_handle, nullptr, &handle) != napi_ok) {
    mapping->unreference();
    return fail(env, "EINVAL", "napi_create_external failed");
  }
  mapping->references++;
  if (napi_create_external_arraybuffer(env, address, bytes, finalize_mapping, mapping, &buffer) != napi_ok) {
    mapping->release();  // the count stays: whether the finalizer will run after a failure is not specified
    bool pending = false;
    napi_is_exception_pending(env, &pending);
    return pending ? nullptr : fail(env, "ENOTSUP", "napi_create_external_arraybuffer failed");
  }
  if (napi_create_object(env, &object) != napi_ok) return nullptr;
  set_property(env, object, "buffer", buffer);
  set_property(env, object, "handle", handle);
  set_number(env, object, "fd", fd);
  set_number(env, object, "device", static_cast<double>(status.st_dev));
  set_number(env, object, "inode", static_cast<double>(status.st_ino));
  return object;
}

size_t page_ceiling(size_t bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (std::max<size_t>(bytes, 1) + page - 1) / page * page;
}

/// createRegion(bytes)
napi_value create_region(napi_env env, napi_callback_info info) {
  napi_value values[1];
  double bytes;
  if (!arguments(env, info, values) || !get(env, values[0], bytes) || !(bytes >= 1 && bytes < 0x1p52)) return fail_arguments(env);
  const size_t length = page_ceiling(static_cast<size_t>(bytes));

  const int fd = create_memory_file();
  if (fd < 0) return fail_errno(env, "memfd_create", errno);
  struct stat status {};
  void* address = MAP_FAILED;
  const char* failed = fill_memory_file(fd, length, address);
  if (failed == nullptr && fchmod(fd, 0600) != 0) failed = "fchmod";
  if (failed == nullptr && fcntl(fd, F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0) failed = "fcntl(F_ADD_SEALS)";
  if (failed == nullptr && fstat(fd, &status) != 0) failed = "fstat";
  if (failed != nullptr) {
    const int error = errno;
    if (address != MAP_FAILED) munmap(address, length);
    close(fd);
    return fail_errno(env, failed, error);
  }
  return to_object(env, address, length, static_cast<size_t>(bytes), fd, status);
}

/// openRegion(path, bytes, device, inode): maps what `path` (/proc/<pid>/fd/<fd>) leads to, if it is still that file.
napi_value open_region(napi_env env, napi_callback_info info) {
  napi_value values[4];
  char path[64];
  size_t path_length = 0;
  double bytes, device, inode;
  if (!arguments(env, info, values) || napi_get_value_string_utf8(env, values[0], path, sizeof path, &path_length) != napi_ok ||
      path_length + 1 >= sizeof path || !get(env, values[1], bytes) || !(bytes >= 1 && bytes < 0x1p52) || !get(env, values[2], device) ||
      !get(env, values[3], inode)) {
    return fail_arguments(env);
  }
  const size_t length = page_ceiling(static_cast<size_t>(bytes));

  const int fd = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (fd < 0) return fail_errno(env, "open", errno);
  struct stat status {};
  const char* failed = nullptr;
  int error = 0;
  void* address = MAP_FAILED;
  if (fstat(fd, &status) != 0) {
    failed = "fstat", error = errno;
  } else if (static_cast<double>(status.st_dev) != device || static_cast<double>(status.st_ino) != inode ||
             status.st_size != static_cast<off_t>(length)) {
    failed = "the descriptor now names another file", error = ESTALE;
  } else if (const int seals = fcntl(fd, F_GET_SEALS); seals < 0 || (seals & kSizeSeals) != kSizeSeals) {
    failed = "the size of the memory is not sealed", error = EPERM;
  } else if (address = map_memory_file(fd, length); address == MAP_FAILED) {
    failed = "mmap", error = errno;
  }
  close(fd);
  if (failed != nullptr) return fail_errno(env, failed, error);
  return to_object(env, address, length, static_cast<size_t>(bytes), -1, status);
}

/// closeRegion(handle, buffer): detaches the buffer, so that views read as empty, then unmaps.
napi_value close_region(napi_env env, napi_callback_info info) {
  napi_value values[2];
  Mapping* mapping;
  if (!arguments(env, info, values) || !get_external(env, values[0], mapping)) return fail_arguments(env);
  if (napi_detach_arraybuffer(env, values[1]) != napi_ok) return fail(env, "EINVAL", "the buffer of a region cannot be detached");
  unmap_count.fetch_add(1, std::memory_order_relaxed);
  mapping->release();
  return nullptr;
}

}  // namespace

uint64_t unmaps() { return unmap_count.load(std::memory_order_relaxed); }

void export_regions(napi_env env, napi_value exports) {
  set_function(env, exports, "createRegion", create_region);
  set_function(env, exports, "openRegion", open_region);
  set_function(env, exports, "closeRegion", close_region);
}

}  // namespace shoal
