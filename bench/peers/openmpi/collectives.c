/* Times MPI collectives the way `shoal bench` times Shoal's: float32, one call at a time, inputs written before each call
 * outside the time, the median over iterations on the slowest rank. Built with mpicc, run by mpirun.
 *
 *   collectives <collective> <bytes>:<iterations>:<warmup>,… <buckets> <checked buckets>
 *
 * With several buckets a sample is that many blocking calls, one after the other on buffers of their own, and the time is that
 * of the sample divided by their number. (MPI_Iallreduce and its like progress only inside MPI calls.)
 *
 * Rank 0 prints one JSON object per size. All-reduce and broadcast are in place, the others are not, as in Shoal. Sizes,
 * parts and their rounding are those of nccl-tests (src/tools/timing/collective.ts). */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum collective { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, ALL_TO_ALL, SEND_RECV, BARRIER, UNKNOWN };

static const char *const names[] = {"all-reduce", "all-gather", "reduce-scatter", "broadcast", "all-to-all", "send-recv", "barrier"};

struct layout {
  size_t send, receive, part;
};

static int rank, ranks;

static double now_us(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1e6 + time.tv_nsec * 1e-3;
}

static struct layout layout_of(enum collective kind, size_t bytes) {
  const size_t count = kind == BARRIER ? 0 : bytes / sizeof(float);
  const size_t part = count / ranks / 4 * 4, whole = part * ranks;
  switch (kind) {
    case ALL_GATHER: return (struct layout){part, whole, part};
    case REDUCE_SCATTER: return (struct layout){whole, part, part};
    case ALL_TO_ALL: return (struct layout){whole, whole, part};
    default: return (struct layout){count, count, count};
  }
}

static void call(enum collective kind, float *input, float *output, struct layout sizes) {
  const int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
  switch (kind) {
    case ALL_REDUCE: MPI_Allreduce(MPI_IN_PLACE, output, (int)sizes.receive, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case ALL_GATHER: MPI_Allgather(input, (int)sizes.part, MPI_FLOAT, output, (int)sizes.part, MPI_FLOAT, MPI_COMM_WORLD); break;
    case REDUCE_SCATTER: MPI_Reduce_scatter_block(input, output, (int)sizes.part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case BROADCAST: MPI_Bcast(output, (int)sizes.receive, MPI_FLOAT, 0, MPI_COMM_WORLD); break;
    case ALL_TO_ALL: MPI_Alltoall(input, (int)sizes.part, MPI_FLOAT, output, (int)sizes.part, MPI_FLOAT, MPI_COMM_WORLD); break;
    case SEND_RECV:
      MPI_Sendrecv(input, (int)sizes.send, MPI_FLOAT, next, 0, output, (int)sizes.receive, MPI_FLOAT, before, 0, MPI_COMM_WORLD,
                   MPI_STATUS_IGNORE);
      break;
    default: MPI_Barrier(MPI_COMM_WORLD);
  }
}

static void touch(float *data, size_t count, float value) {
  for (size_t i = 0; i < count; i++) data[i] = value;
}

/* What rank `from` has for rank `to` at position i: small integers, so that every sum is exact. */
static float element(size_t i, int from, int to) { return (float)(i % 7 + 3 * (from % 5) + 2 * (to % 3)); }

static float sum_of_elements(size_t i) {
  float sum = 0;
  for (int from = 0; from < ranks; from++) sum += element(i, from, 0);
  return sum;
}

/* One call on inputs that tell ranks and positions apart; wrong elements of this rank. */
static long check(enum collective kind, float *input, float *output, struct layout sizes) {
  const int before = (rank + ranks - 1) % ranks;
  if (input != output)
    for (size_t i = 0; i < sizes.receive; i++) output[i] = -1;
  for (size_t i = 0; i < sizes.send; i++)
    input[i] = kind == ALL_TO_ALL ? element(i % sizes.part, rank, (int)(i / sizes.part)) : element(i, rank, 0);
  call(kind, input, output, sizes);
  long wrong = 0;
  for (size_t i = 0; i < sizes.receive; i++) {
    float expected = 0;
    switch (kind) {
      case ALL_REDUCE: expected = sum_of_elements(i); break;
      case ALL_GATHER: expected = element(i % sizes.part, (int)(i / sizes.part), 0); break;
      case REDUCE_SCATTER: expected = sum_of_elements(i + rank * sizes.part); break;
      case BROADCAST: expected = element(i, 0, 0); break;
      case ALL_TO_ALL: expected = element(i % sizes.part, (int)(i / sizes.part), rank); break;
      case SEND_RECV: expected = element(i, before, 0); break;
      default: break;
    }
    wrong += output[i] != expected;
  }
  return wrong;
}

static int ascending(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static float *allocate(size_t count) {
  float *memory = malloc((count + 1) * sizeof(float));
  if (memory == NULL) {
    fprintf(stderr, "rank %d: %zu floats do not fit into memory\n", rank, count);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  return memory;
}

/* One operation's buffers. */
struct bucket {
  float *input, *output;
};

static void measure(enum collective kind, size_t bytes, int iterations, int warmup, int buckets, int checked) {
  const struct layout sizes = layout_of(kind, bytes);
  const int in_place = kind == ALL_REDUCE || kind == BROADCAST;
  struct bucket *all = calloc(buckets, sizeof *all);
  double *samples = malloc(iterations * sizeof(double));
  const float value = kind == ALL_REDUCE || kind == REDUCE_SCATTER ? (float)(rank + 1) : 1.0f;
  for (int k = 0; k < buckets; k++) {
    all[k].input = allocate(sizes.send);
    all[k].output = in_place ? all[k].input : allocate(sizes.receive);
    touch(all[k].output, sizes.receive, 0);
  }
  for (int i = -warmup; i < iterations; i++) {
    if (i == 0) MPI_Barrier(MPI_COMM_WORLD);
    for (int k = 0; k < buckets; k++) touch(all[k].input, sizes.send, value);
    const double start = now_us();
    for (int k = 0; k < buckets; k++) call(kind, all[k].input, all[k].output, sizes);
    if (i >= 0) samples[i] = (now_us() - start) / buckets;
  }
  qsort(samples, iterations, sizeof(double), ascending);
  double own[3] = {samples[iterations / 2], samples[0], samples[(iterations * 99 + 99) / 100 - 1]}, slowest[3];
  MPI_Reduce(own, slowest, 3, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  long wrong = 0, all_wrong = 0;
  for (int k = 0; k < checked; k++) wrong += check(kind, all[k].input, all[k].output, sizes);
  MPI_Reduce(&wrong, &all_wrong, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) {
    printf("{\"bytes\":%zu,\"iterations\":%d,\"medianUs\":%.3f,\"minUs\":%.3f,\"p99Us\":%.3f,\"wrong\":%ld}\n", bytes, iterations, slowest[0],
           slowest[1], slowest[2], all_wrong);
    fflush(stdout);
  }
  for (int k = 0; k < buckets; k++) {
    if (!in_place) free(all[k].output);
    free(all[k].input);
  }
  free(samples);
  free(all);
}

static enum collective collective_of(const char *name) {
  for (int kind = 0; kind < UNKNOWN; kind++)
    if (strcmp(name, names[kind]) == 0) return kind;
  return UNKNOWN;
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const enum collective kind = argc == 5 && atoi(argv[3]) > 0 && atoi(argv[4]) <= atoi(argv[3]) ? collective_of(argv[1]) : UNKNOWN;
  if (kind == UNKNOWN) {
    if (rank == 0) fprintf(stderr, "usage: collectives <collective> <bytes>:<iterations>:<warmup>,... <buckets> <checked buckets>\n");
    MPI_Finalize();
    return 2;
  }
  for (char *item = strtok(argv[2], ","); item != NULL; item = strtok(NULL, ",")) {
    size_t bytes = 0;
    int iterations = 0, warmup = 0;
    if (sscanf(item, "%zu:%d:%d", &bytes, &iterations, &warmup) != 3 || iterations < 1 || warmup < 0) {
      if (rank == 0) fprintf(stderr, "'%s' is not <bytes>:<iterations>:<warmup>\n", item);
      MPI_Finalize();
      return 2;
    }
    measure(kind, bytes, iterations, warmup, atoi(argv[3]), atoi(argv[4]));
  }
  MPI_Finalize();
  return 0;
}
