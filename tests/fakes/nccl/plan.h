// The fault plan of the fake NCCL, of the environment variable FAKE_NCCL: entries with commas.
//   version=22203            what ncclGetVersion answers
//   1:reduce_scatter:3:die   rank 1 does this in its third reduce_scatter (counted from 1)
// Calls: init, reduce_scatter, all_gather. Faults: never (the rank does not arrive, and
// lives), fail (a remote error there), slow (it arrives late: after 200 looks), die (SIGKILL).
//   notice                   ranks notice that another process has ended (a remote error)
// FAKE_NCCL_FREE names a pipe: freeing a communicator waits for a byte from it.
// Comes from: tests. Goes to: fake_nccl.cc. Thread safety: immutable.
#pragma once

#include <string>
#include <vector>

namespace fake_nccl {

struct Fault {
  int rank;
  std::string call;
  int at;
  std::string what;
};

struct Plan {
  int version = 22203;
  bool notice = false;
  std::vector<Fault> faults;

  // "" when nothing happens in this call.
  std::string FaultOf(int rank, const std::string& call, int at) const;
};

// Of the environment at the first call.
const Plan& ThePlan();

}  // namespace fake_nccl
