/* The same with Open MPI. */
#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv) {
  int rank;
  float data[2] = {0, 0};
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (int thousand = 0; thousand < 60; thousand++) {
    double start = MPI_Wtime();
    for (int call = 0; call < 1000; call++) MPI_Allreduce(MPI_IN_PLACE, data, 2, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0) printf("%s%.4f", thousand == 0 ? "[" : ",", (MPI_Wtime() - start) * 1e3);
  }
  if (rank == 0) printf("]\n");
  return MPI_Finalize();
}
