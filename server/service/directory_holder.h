// The job directory as the handlers see it: absent until the server knows its peers and has read
// its jobs. Comes from: server main. Goes to: control_service, peer_service, admin_service,
// trainer_stream. Thread safety: any thread.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/sync.h"
#include "server/directory/job_directory.h"

namespace ballast::server {

class DirectoryHolder {
 public:
  // Until Set, calls are refused with `waiting_for`.
  explicit DirectoryHolder(absl::Status waiting_for) : waiting_for_(std::move(waiting_for)) {}

  // Sets the error that names the server's present wait.
  void WaitFor(absl::Status waiting_for) {
    MutexLock lock(&mu_);
    waiting_for_ = std::move(waiting_for);
  }

  void Set(std::shared_ptr<JobDirectory> directory) {
    MutexLock lock(&mu_);
    directory_ = std::move(directory);
  }

  // Error: UNAVAILABLE, `waiting_for`.
  absl::StatusOr<std::shared_ptr<JobDirectory>> Get() const {
    MutexLock lock(&mu_);
    if (directory_ != nullptr) return directory_;
    return waiting_for_;
  }
  // An interface of the directory, which the pointer keeps alive. Errors as the other Get's.
  template <typename Api>
  absl::StatusOr<std::shared_ptr<Api>> Get(Api* JobApis::*api) const {
    const absl::StatusOr<std::shared_ptr<JobDirectory>> directory = Get();
    if (!directory.ok()) return directory.status();
    return std::shared_ptr<Api>(*directory, (*directory)->apis().*api);
  }

 private:
  mutable Mutex mu_;
  absl::Status waiting_for_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<JobDirectory> directory_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ballast::server
