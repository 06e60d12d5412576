// HomeRendezvous: the calls of Rendezvous, as long polls of the job's home, repeated until it
// answers, also while it is away; calls that need no wait are tried for one second.
// Comes from: Session. Goes to: Control.Rendezvous, through Deps::call.
// Thread safety: thread-safe; each call blocks its own thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ballast/rendezvous.h"
#include "ballast/v1/control.pb.h"
#include "common/base/sync.h"

namespace ballast::client {

void ToProto(const Doing& doing, v1::Doing* out);

class HomeRendezvous final : public Rendezvous {
 public:
  // The trainer and its dependencies; the functions may be called from any thread.
  struct Deps {
    uint64_t job = 0;
    uint32_t slot = 0;
    uint64_t incarnation = 0;
    // How long an unreachable home is retried; 0: not at all.
    std::chrono::milliseconds reconnect_timeout{0};
    double time_scale = 1;  // stretches Meeting::timeout
    // Asks the home once. Errors: the home's; the session's; UNAVAILABLE, DEADLINE_EXCEEDED without
    // a reason when no answer comes.
    std::function<absl::Status(const v1::RendezvousRequest& request,
                               std::chrono::milliseconds timeout, v1::RendezvousReply* reply)>
        call;
    // Waits before the next try. Error: the session's, which ends the wait.
    std::function<absl::Status(std::chrono::milliseconds time)> wait;
    std::function<std::chrono::steady_clock::time_point()> now;
    std::function<uint32_t()> epoch;  // the present one
  };

  explicit HomeRendezvous(Deps deps) : deps_(std::move(deps)) {}

  absl::StatusOr<std::string> Exchange(const Meeting& meeting, const std::string& id) override;
  absl::Status Ready(const Meeting& meeting, const std::string& id) override;
  absl::Status GiveUp(const Meeting& meeting, const std::string& why) override;
  absl::StatusOr<RollCallReport> RollCall() override;
  void SetDoing(const Doing& doing) override;
  Doing doing() const;

 private:
  // From the first meeting on, heartbeats report the rank's work.
  void BeginDoing();
  v1::RendezvousRequest Request(v1::RendezvousAct act, const Meeting& meeting) const;
  // Repeats the call until the home reports the end of the wait.
  absl::StatusOr<v1::RendezvousReply> Ask(const v1::RendezvousRequest& request) const;
  // Makes a call that the home answers at once. Error: UNAVAILABLE when it is away for a second.
  absl::StatusOr<v1::RendezvousReply> AskAtOnce(const v1::RendezvousRequest& request) const;

  const Deps deps_;
  mutable Mutex mu_;
  Doing doing_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ballast::client
