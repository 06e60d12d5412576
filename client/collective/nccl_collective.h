// The collective over NCCL, on memory of a GPU or, with the tests' fake NCCL, of the host.
// Comes from: a communicator of one epoch of a job. Goes to: the stream of the framework, on which
// NCCL's work runs, so a call sees the work queued there before it, and later work sees its result.
// The host looks at the work and at a clock, and never waits inside NCCL.
// Sums are formed in NCCL's order, which differs from the servers' for more than two ranks.
// Tested with a fake NCCL; with NCCL and one rank by the GPU kit (docs/gpu.md).
// Thread safety: as Collective.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/collective/collective.h"
#include "client/collective/nccl_comms.h"
#include "client/device/device.h"
#include "common/base/clock.h"
#include "common/base/sync.h"

namespace ballast::collective {

struct NcclConfig {
  uint32_t rank = 0;
  uint32_t world = 1;
  uint64_t epoch = 0;  // for errors
  // How long the init, and each call, may wait for the other ranks. At least 1 ms.
  std::chrono::nanoseconds timeout{0};
  // Called while a call waits, on its thread, some 20 times a second: not OK ends it with that.
  std::function<absl::Status()> look;
  // The ranks that did not say that they failed, too, and where; empty where it is not known.
  std::function<std::vector<uint32_t>(const std::string& where)> roll_call;
  const Clock* clock = RealClock::Get();
};

class NcclCollective final : public Collective {
 public:
  // Makes a communicator of all ranks that give the same `id`, and waits for them. `device` holds
  // the memory of all calls and `stream` is the framework's; both outlive the collective.
  // Errors: those of Collective, INVALID_ARGUMENT for a rank outside the world or no time, and
  // NcclLibrary::ErrorOf.
  static absl::StatusOr<std::unique_ptr<NcclCollective>> Create(std::shared_ptr<NcclComms> comms,
                                                                device::Device* device,
                                                                device::Stream stream,
                                                                const nccl::UniqueId& id,
                                                                NcclConfig config);
  ~NcclCollective() override;
  NcclCollective(const NcclCollective&) = delete;
  NcclCollective& operator=(const NcclCollective&) = delete;

  uint32_t rank() const override { return config_.rank; }
  uint32_t world() const override { return config_.world; }
  absl::Status ReduceScatter(BucketId id, DType dtype, const void* bucket, void* share,
                             size_t count) override;
  absl::Status AllGather(BucketId id, const void* share, void* bucket, size_t bytes) override;
  void Abort(absl::Status why) override;

 private:
  using QueueFn = std::function<int(nccl::Comm, void* stream)>;

  NcclCollective(std::shared_ptr<NcclComms> comms, device::Device* device, device::Stream stream,
                 NcclConfig config)
      : comms_(std::move(comms)), device_(device), stream_(stream), config_(std::move(config)) {}

  absl::Status Begin(const nccl::UniqueId& id);
  // Queues one call of NCCL, and waits until its work is done.
  absl::Status Call(const std::string& where, const QueueFn& queue);
  absl::Status Work(const std::string& where, const QueueFn& queue);
  // Waits until `done` says so, an error, the deadline, an abort, or what look() says.
  absl::Status Await(const std::string& where, std::chrono::nanoseconds deadline,
                     const std::function<absl::StatusOr<bool>()>& done);
  // Whether NCCL has nothing in progress.
  absl::StatusOr<bool> Settled(const std::string& where);
  absl::Status Checked(const std::string& where, absl::StatusOr<int> result) const;
  // Sleeps for `pause`, or until an abort; answers stale_.
  absl::Status Pause(std::chrono::nanoseconds pause);
  // Makes the collective stale, and ends all communicators.
  absl::Status Fail(const std::string& where, std::chrono::nanoseconds began, absl::Status error);

  const std::shared_ptr<NcclComms> comms_;
  device::Device* const device_;
  const device::Stream stream_;
  const NcclConfig config_;
  std::shared_ptr<NcclComm> comm_;
  device::Event done_{};
  Mutex mutex_;
  CondVar aborted_;
  absl::Status stale_ ABSL_GUARDED_BY(mutex_);  // OK: it is not
};

}  // namespace ballast::collective
