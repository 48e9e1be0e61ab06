/* Every rank tells its rank, the size, its host, and the sum of all ranks' rank + 1. */
#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv) {
  int rank, size, length, sum, mine;
  char host[MPI_MAX_PROCESSOR_NAME];
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Get_processor_name(host, &length);
  mine = rank + 1;
  MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  printf("%d %d %s %d\n", rank, size, host, sum);
  MPI_Finalize();
  return 0;
}
