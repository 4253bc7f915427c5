// The program `shoal-rank`: the launcher starts it in the place of a rank, and it becomes the rank.
//
//   shoal-rank PROGRAM ARGUMENT…      descriptor 3: the guard's pipe (src/launch/guard.ts)
//
// It makes a process group of its own but stays in the launcher's session: Linux shares CPUs out among sessions first, and
// sched_yield(2) of a rank that is alone in its session gives way to no other rank (sched(7), autogroup). The guard ends the rank
// with its launcher; where both are killed at once, the kernel does (PR_SET_PDEATHSIG, kept over exec).
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

int main(int argc, char** argv) {
#ifdef __linux__
  // The launcher's main thread has started this process, and ends only together with the launcher. This call comes first: until
  // then nothing ties the two.
  prctl(PR_SET_PDEATHSIG, SIGTERM);
#endif
  if (argc < 2) {
    std::fprintf(stderr, "shoal-rank: a program is missing; it is started by shoal run\n");
    return 2;
  }
  setpgid(0, 0);
  char line[32];
  const int length = std::snprintf(line, sizeof line, "+ %d\n", static_cast<int>(getpid()));
  // The rank runs even if the guard is gone.
  std::signal(SIGPIPE, SIG_IGN);
  if (write(3, line, static_cast<size_t>(length)) != length) {
    std::fprintf(stderr, "shoal-rank: nobody guards this rank (%s); it may outlive its launcher\n", std::strerror(errno));
  }
  std::signal(SIGPIPE, SIG_DFL);
  close(3);
  execvp(argv[1], argv + 1);
  // The message and the exit codes are those of a shell.
  const int reason = errno;
  std::fprintf(stderr, "shoal-rank: %s: %s\n", argv[1], std::strerror(reason));
  return reason == ENOENT ? 127 : 126;
}
