#include "tests/fakes/nccl/plan.h"

#include <cstdlib>
#include <sstream>

namespace fake_nccl {
namespace {

Plan Read(const char* text) {
  Plan plan;
  std::istringstream entries(text == nullptr ? "" : text);
  for (std::string entry; std::getline(entries, entry, ',');) {
    if (entry == "notice") plan.notice = true;
    if (entry.rfind("version=", 0) == 0) plan.version = std::atoi(entry.c_str() + 8);
    std::istringstream parts(entry);
    std::string rank, call, at, what;
    std::getline(parts, rank, ':');
    std::getline(parts, call, ':');
    std::getline(parts, at, ':');
    std::getline(parts, what, ':');
    if (what.empty()) continue;
    plan.faults.push_back({std::atoi(rank.c_str()), call, std::atoi(at.c_str()), what});
  }
  return plan;
}

}  // namespace

std::string Plan::FaultOf(int rank, const std::string& call, int at) const {
  for (const Fault& fault : faults) {
    if (fault.rank == rank && fault.call == call && fault.at == at) return fault.what;
  }
  return "";
}

const Plan& ThePlan() {
  static const Plan* plan = new Plan(Read(std::getenv("FAKE_NCCL")));
  return *plan;
}

}  // namespace fake_nccl
