// Keeps prebuilt binaries loadable with older C libraries than the one they are linked with.
//
// glibc gives old functions new versions now and then (in 2.34 all those of libpthread and libdl), and the linker takes the
// newest: a binary built today would need this year's glibc. The linker is told to send references to these names here (--wrap in
// binding.gyp), those of libstdc++ and libgcc too, which are linked in; from here they go on to the first version of each, which
// every glibc has. scripts/prebuild.mjs refuses binaries that need more than the floor it names.
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#define FIRST "GLIBC_2.2.5"
#define JUMP_TO(name) "jmp " name "@PLT"
#elif defined(__aarch64__)
#define FIRST "GLIBC_2.17"
#define JUMP_TO(name) "b " name
#endif

// The macro jumps rather than calls: dlopen looks at its caller.
#define TO_FIRST_VERSION(name)                          \
  __asm__(                                              \
      ".text\n"                                         \
      ".symver floor_" #name "," #name "@" FIRST "\n"   \
      ".globl __wrap_" #name "\n"                       \
      ".hidden __wrap_" #name "\n"                      \
      ".type __wrap_" #name ", %function\n"             \
      "__wrap_" #name ": " JUMP_TO("floor_" #name) "\n")

extern "C" {
#ifdef SHOAL_FLOOR_OF_PROGRAM

TO_FIRST_VERSION(__libc_start_main);

#else

TO_FIRST_VERSION(__pthread_key_create);
TO_FIRST_VERSION(dladdr);
TO_FIRST_VERSION(dlerror);
TO_FIRST_VERSION(dlopen);
TO_FIRST_VERSION(dlsym);
TO_FIRST_VERSION(dlvsym);
TO_FIRST_VERSION(pthread_create);
TO_FIRST_VERSION(pthread_detach);
TO_FIRST_VERSION(pthread_getspecific);
TO_FIRST_VERSION(pthread_join);
TO_FIRST_VERSION(pthread_key_create);
TO_FIRST_VERSION(pthread_key_delete);
TO_FIRST_VERSION(pthread_once);
TO_FIRST_VERSION(pthread_setspecific);

// Functions that are newer than the floor are implemented here.

/** Tells shared_ptr that it may count without atomic operations: never. (2.32) */
char __wrap___libc_single_threaded = 0;

/** Called by the unwinder, for exceptions, which are never caught here. (2.35) */
int __wrap__dl_find_object(void*, void*) { return -1; }

/** Called by std::random_device, which nothing here uses. (2.36) */
unsigned __wrap_arc4random() {
  unsigned random = 0;
  return getentropy(&random, sizeof random) == 0 ? random : 0;
}

/** Not a function that one could link with before glibc 2.33. */
int __wrap_fstat64(int fd, void* status) { return static_cast<int>(syscall(SYS_fstat, fd, status)); }

/** Not in glibc before 2.30. */
int __wrap_pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const timespec* until) {
  constexpr long kSecond = 1000000000;
  timespec now, deadline;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &deadline);
  deadline.tv_sec += until->tv_sec - now.tv_sec;
  deadline.tv_nsec += until->tv_nsec - now.tv_nsec;
  if (deadline.tv_nsec < 0) deadline.tv_sec -= 1, deadline.tv_nsec += kSecond;
  if (deadline.tv_nsec >= kSecond) deadline.tv_sec += 1, deadline.tv_nsec -= kSecond;
  return pthread_cond_timedwait(condition, mutex, &deadline);
}

#endif
}
