// TierRig: a job's state on the NVMe tier without a job: images on disk, the tier, the step
// kernels, and sweeps over all extents as the round engine makes them. Comes from:
// bench/storage/tier_bench.cc. Goes to: server/tier, server/durability. Thread safety: one thread;
// sweeps use threads of their own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/arena.h"
#include "common/tensor/layout.h"
#include "common/threads/thread_executor.h"
#include "common/threads/thread_worker_pool.h"
#include "server/durability/job_storage.h"
#include "server/durability/round_log.h"
#include "server/optim/scalars.h"
#include "server/state/extent_store.h"
#include "server/tier/nvme_tier.h"

namespace ballast::bench {

struct RigOptions {
  std::string directory;
  uint32_t extents = 0;
  uint32_t extent_elements = 0;
  uint32_t buffers = 0;  // extents in memory
  int tier_threads = 2;  // images read, and images written, at a time
  bool log = false;      // every extent's gradient goes to the log before its sweep, in 2 bytes
};

class TierRig {
 public:
  // Makes the files, and writes the first state to every image.
  static absl::StatusOr<std::unique_ptr<TierRig>> Create(const RigOptions& options);
  ~TierRig();

  // Steps every extent once, in the other direction than the last time, and flushes once. Seconds.
  absl::StatusOr<double> Sweep();
  // Whether every value of every extent equals the result of as many steps in memory.
  absl::StatusOr<bool> Verify();
  // Of the images of all extents, in one version.
  uint64_t payload_bytes() const;

 private:
  struct Progress;

  TierRig(const RigOptions& options, server::NvmeTier* nvme, server::ExtentStore store,
          Layout layout);
  server::StorageOptions Storage() const;
  absl::Status Prepare();
  // Gives both images of every extent their blocks on the disk, before anything is measured.
  absl::Status WriteFirstState();
  absl::Status LogGradients();
  server::ExtentStep StepTo(char* weights) const;
  void PumpSweep(const std::shared_ptr<Progress>& progress);
  void StepExtent(const std::shared_ptr<Progress>& progress, uint32_t extent);
  // Runs on the strand and waits for `done` to be called there.
  absl::Status OnStrand(const std::function<void(server::ImageIo::Done)>& task);

  const RigOptions options_;
  server::NvmeTier* const nvme_;
  server::ExtentStore store_;
  const Layout layout_;
  Arena gradient_;
  Arena weights_;
  optim::Scalars scalars_ = {};
  std::vector<const optim::Scalars*> by_tensor_;
  std::vector<uint32_t> order_;
  uint64_t version_ = 1;
  ThreadExecutor executor_;
  Strand strand_;
  ThreadWorkerPool workers_;
  std::unique_ptr<server::RoundLog> log_;  // Goes first: its threads use the tier's memory.
};

}  // namespace ballast::bench
