// Ranks as processes, forked from the test, with a fault plan for the fake NCCL.
// Comes from: nccl_test.cc. Goes to: the fake NCCL's shared memory. Thread safety: one thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/collective/nccl_collective.h"
#include "client/device/host_device.h"

namespace ballast::collective {

// The end of a rank's process: the value its body returned, or the signal that ended it.
struct RankEnd {
  std::string said;
  int signal = 0;
};

// Runs `body` for each rank in a process of its own; `plan` is FAKE_NCCL there. Returns when all
// have ended. The test itself must have no thread and no NCCL.
std::vector<RankEnd> RunRanks(int world, const std::string& plan,
                              const std::function<std::string(int rank)>& body);

// A rank in its process: NCCL as torch leaves it there, and a device of the host.
class Rank {
 public:
  Rank(int rank, int world);

  // A communicator of the present epoch.
  absl::Status Connect(const nccl::UniqueId& id, uint64_t epoch, std::chrono::nanoseconds timeout);
  NcclCollective& collective() { return *collective_; }
  const std::shared_ptr<NcclComms>& comms() { return comms_; }

  // Sums and shares `rounds` rounds of one bucket, from `first` on; checks each result. "well", or
  // the first error.
  std::string Train(uint64_t first, uint64_t rounds);

 private:
  const uint32_t rank_, world_;
  device::HostDevice device_;
  const device::Stream stream_;
  std::shared_ptr<NcclComms> comms_;
  std::unique_ptr<NcclCollective> collective_;
};

// An id of the fake NCCL, for ranks that are forked later.
nccl::UniqueId FakeId();

}  // namespace ballast::collective
