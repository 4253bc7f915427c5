// Finds Open MPI on this machine.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <mutex>

#include "mpi_api.h"

namespace shoal::mpi {
namespace {

/// File names of the library: Open MPI 1.10 to 5, then other implementations, so that an error can name the one found.
constexpr const char* kNames[] = {"libmpi.so.40", "libmpi.so.20", "libmpi.so.12", "libmpich.so.12", "libmpi.so"};

struct Loaded {
  Api api;
  bool usable = false;
  char why[1024] = "";
};

template <class T>
bool find(void* library, const char* name, T& out) {
  void* symbol = dlsym(library, name);
  static_assert(sizeof symbol == sizeof out, "functions and objects have addresses of one size");
  std::memcpy(&out, &symbol, sizeof out);
  return symbol != nullptr;
}

const char* find_all(void* library, Api& api) {
#define SHOAL_MPI_FIND(name, ...) \
  if (!find(library, "MPI_" #name, api.name)) return "MPI_" #name;
  SHOAL_MPI_FUNCTIONS(SHOAL_MPI_FIND)
#undef SHOAL_MPI_FIND
#define SHOAL_MPI_FIND(type, name) \
  if (!find(library, "ompi_mpi_" #name, api.name##_object)) return "ompi_mpi_" #name;
  SHOAL_MPI_OBJECTS(SHOAL_MPI_FIND)
#undef SHOAL_MPI_FIND
  return nullptr;
}

void load_into(Loaded& loaded) {
  void* library = nullptr;
  // The library's plug-ins look for its symbols among the global ones.
  for (const char* name : kNames) {
    if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
  }
  if (library == nullptr) {
    std::snprintf(loaded.why, sizeof loaded.why, "libmpi.so.40 cannot be loaded (%s)", dlerror());
    return;
  }
  Api& api = loaded.api;
  int length = 0;
  if (find(library, "MPI_Get_library_version", api.Get_library_version)) api.Get_library_version(api.version, &length);
  for (char* at = api.version; *at != '\0'; at++) {
    if (*at == '\n') *at = '\0';
  }
  const char* what = api.version[0] == '\0' ? "of an unknown kind" : api.version;
  if (std::strncmp(api.version, "Open MPI", 8) != 0) {
    std::snprintf(loaded.why, sizeof loaded.why, "the MPI library is %.200s, and only Open MPI's binary interface is known", what);
    return;
  }
  if (const char* missing = find_all(library, api)) {
    std::snprintf(loaded.why, sizeof loaded.why, "the MPI library (%.200s) has no %s", what, missing);
    return;
  }
  loaded.usable = true;
}

}  // namespace

const Api* load(const char*& why) {
  static std::once_flag once;
  static Loaded loaded;
  std::call_once(once, [] { load_into(loaded); });
  why = loaded.why;
  return loaded.usable ? &loaded.api : nullptr;
}

}  // namespace shoal::mpi
