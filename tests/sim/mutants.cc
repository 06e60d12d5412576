#include "tests/sim/mutants.h"

#include <cstring>

namespace ballast::sim {

const MutantInfo* FindMutant(const char* name) {
  for (const MutantInfo& info : kMutants) {
    if (std::strcmp(info.name, name) == 0) return &info;
  }
  return nullptr;
}

}  // namespace ballast::sim
