// All communicators of a process, so that they can be aborted together.
// Comes from: NcclCollective, one communicator each. Goes to: NCCL. An abort frees memory of CUDA,
// which waits for kernels of the other communicators, which wait for lost ranks: so all are marked
// aborted before the first is freed (decision 045). A communicator always ends by
// abort: no call is under way then, and nothing waits for another rank.
// Thread safety: thread-safe. No lock is held while NCCL frees.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/collective/nccl_library.h"
#include "common/base/sync.h"

namespace ballast::collective {

// A communicator, until it is aborted.
class NcclComm {
 public:
  // What `call` answers: a result of NCCL. The status that ended the communicator, once it is
  // aborted; `call` does not run then. `call` must not block.
  absl::StatusOr<int> Run(const std::function<int(nccl::Comm)>& call);

 private:
  friend class NcclComms;

  // Makes all later calls answer `why`; the communicator is the caller's. Null: it was ended.
  nccl::Comm Take(const absl::Status& why);

  Mutex mutex_;
  nccl::Comm comm_ ABSL_GUARDED_BY(mutex_) = nullptr;
  absl::Status end_ ABSL_GUARDED_BY(mutex_);  // OK: it is not ended
};

class NcclComms {
 public:
  explicit NcclComms(std::shared_ptr<const NcclLibrary> library) : library_(std::move(library)) {}

  const NcclLibrary& library() const { return *library_; }

  // Begins rank `rank` of `world` of a communicator; NCCL works on it while the caller asks for
  // its async error. Error: what NCCL answers at once.
  absl::StatusOr<std::shared_ptr<NcclComm>> Begin(const nccl::UniqueId& id, int rank, int world);

  // Aborts all communicators of the process; from now on calls on them return `why`. Returns when
  // NCCL has freed them.
  void AbortAll(const absl::Status& why);
  // Ends one without work under way.
  void End(const std::shared_ptr<NcclComm>& comm);

 private:
  void Abort(const std::vector<std::shared_ptr<NcclComm>>& comms, const absl::Status& why);

  const std::shared_ptr<const NcclLibrary> library_;
  Mutex mutex_;
  std::vector<std::shared_ptr<NcclComm>> comms_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast::collective
