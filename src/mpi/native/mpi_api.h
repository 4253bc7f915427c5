// The part of Open MPI that Shoal uses, declared here and found at run time: neither building nor loading the addon needs MPI.
//
// Open MPI's handles are pointers to objects of the library, which it exports by name; that, and the layout of a status, has been
// the same from 1.10 to 5.0. MPICH and its relatives use integers: they are recognised and refused.
#pragma once
#include <cstddef>
#include <type_traits>

namespace shoal::mpi {

using Comm = struct CommObject*;
using Group = struct GroupObject*;
using Datatype = struct DatatypeObject*;
using Op = struct OpObject*;
using Request = struct RequestObject*;
using Message = struct MessageObject*;
using ErrorHandler = struct ErrorHandlerObject*;

struct Status {
  int source;
  int tag;
  int error;
  int cancelled;
  size_t bytes;
};

using UserFunction = void(void* in, void* in_out, int* count, Datatype* type);

constexpr int kSuccess = 0;
constexpr int kErrorTruncate = 15;
constexpr int kAny = -1;
constexpr int kThreadMultiple = 3;
constexpr int kTagUpperBound = 0;
constexpr int kErrorTextMax = 512;
constexpr int kVersionTextMax = 512;

/// MPI_IN_PLACE.
inline void* in_place() { return reinterpret_cast<void*>(1); }

// clang-format off
#define SHOAL_MPI_FUNCTIONS(X)                                                                                          \
  X(Get_library_version, int(char*, int*))                                                                              \
  X(Initialized, int(int*))                                                                                             \
  X(Finalized, int(int*))                                                                                               \
  X(Init_thread, int(int*, char***, int, int*))                                                                         \
  X(Query_thread, int(int*))                                                                                            \
  X(Finalize, int())                                                                                                    \
  X(Error_string, int(int, char*, int*))                                                                                \
  X(Comm_rank, int(Comm, int*))                                                                                         \
  X(Comm_size, int(Comm, int*))                                                                                         \
  X(Comm_dup, int(Comm, Comm*))                                                                                         \
  X(Comm_free, int(Comm*))                                                                                              \
  X(Comm_group, int(Comm, Group*))                                                                                      \
  X(Comm_get_attr, int(Comm, int, void*, int*))                                                                         \
  X(Comm_create_group, int(Comm, Group, int, Comm*))                                                                    \
  X(Comm_set_errhandler, int(Comm, ErrorHandler))                                                                       \
  X(Group_incl, int(Group, int, const int*, Group*))                                                                    \
  X(Group_free, int(Group*))                                                                                            \
  X(Op_create, int(UserFunction*, int, Op*))                                                                            \
  X(Isend, int(const void*, int, Datatype, int, int, Comm, Request*))                                                   \
  X(Improbe, int(int, int, Comm, int*, Message*, Status*))                                                              \
  X(Imrecv, int(void*, int, Datatype, Message*, Request*))                                                              \
  X(Testsome, int(int, Request*, int*, int*, Status*))                                                                  \
  X(Get_count, int(const Status*, Datatype, int*))                                                                      \
  X(Ibarrier, int(Comm, Request*))                                                                                      \
  X(Ibcast, int(void*, int, Datatype, int, Comm, Request*))                                                             \
  X(Iallreduce, int(const void*, void*, int, Datatype, Op, Comm, Request*))                                             \
  X(Ireduce, int(const void*, void*, int, Datatype, Op, int, Comm, Request*))                                           \
  X(Iallgather, int(const void*, int, Datatype, void*, int, Datatype, Comm, Request*))                                  \
  X(Iallgatherv, int(const void*, int, Datatype, void*, const int*, const int*, Datatype, Comm, Request*))              \
  X(Igather, int(const void*, int, Datatype, void*, int, Datatype, int, Comm, Request*))                                \
  X(Igatherv, int(const void*, int, Datatype, void*, const int*, const int*, Datatype, int, Comm, Request*))            \
  X(Iscatter, int(const void*, int, Datatype, void*, int, Datatype, int, Comm, Request*))                               \
  X(Iscatterv, int(const void*, const int*, const int*, Datatype, void*, int, Datatype, int, Comm, Request*))           \
  X(Ireduce_scatter, int(const void*, void*, const int*, Datatype, Op, Comm, Request*))                                 \
  X(Ialltoall, int(const void*, int, Datatype, void*, int, Datatype, Comm, Request*))                                   \
  X(Ialltoallv, int(const void*, const int*, const int*, Datatype, void*, const int*, const int*, Datatype, Comm, Request*))

#define SHOAL_MPI_OBJECTS(X)          \
  X(Comm, comm_world)                 \
  X(ErrorHandler, errors_return)      \
  X(Datatype, byte)                   \
  X(Datatype, double)                 \
  X(Datatype, float)                  \
  X(Datatype, int64_t)                \
  X(Datatype, int32_t)                \
  X(Datatype, int16_t)                \
  X(Datatype, int8_t)                 \
  X(Datatype, uint32_t)               \
  X(Datatype, uint16_t)               \
  X(Datatype, uint8_t)                \
  X(Op, op_sum)                       \
  X(Op, op_prod)                      \
  X(Op, op_min)                       \
  X(Op, op_max)                       \
  X(Op, op_band)                      \
  X(Op, op_bor)                       \
  X(Op, op_bxor)                      \
  X(Op, op_land)                      \
  X(Op, op_lor)                       \
  X(Op, op_lxor)
// clang-format on

/// The library's functions and objects.
struct Api {
#define SHOAL_MPI_MEMBER(name, ...) std::add_pointer_t<__VA_ARGS__> name = nullptr;
  SHOAL_MPI_FUNCTIONS(SHOAL_MPI_MEMBER)
#undef SHOAL_MPI_MEMBER
#define SHOAL_MPI_MEMBER(type, name) type name##_object = nullptr;
  SHOAL_MPI_OBJECTS(SHOAL_MPI_MEMBER)
#undef SHOAL_MPI_MEMBER
  /// Version of the library: `Open MPI v4.1.4, …`.
  char version[kVersionTextMax] = "";
};

/// The library, loaded once per process; null with the reason in `why` when there is no usable one.
const Api* load(const char*& why);

}  // namespace shoal::mpi
