// A trainer's move into its job's next epoch, or through several in quick succession: from the
// first STALE_EPOCH until every reachable server has said Welcome in the newest one. The trainer
// attaches again at the job's home, whose answer is the record of the new epoch. Comes from:
// SessionCore. Goes to: the home's Attach, the pause reporter. Thread safety: none; lives under the
// session's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ballast/v1/control.pb.h"
#include "client/cpp/job/job_view.h"
#include "client/cpp/session/pause_reporter.h"
#include "client/cpp/session/reconnect.h"
#include "client/cpp/session/server_link.h"
#include "client/cpp/transport/link.h"

namespace ballast::client {

class EpochTransition {
 public:
  // The pointers outlive the object.
  EpochTransition(const JobView* job, Transport* transport, PauseReporter* pauses);

  // The new record is not here yet.
  bool waits_for_record() const { return tries_.away(); }
  // When Retry has something to do; Time::max() for nothing.
  Time due() const { return tries_.due(); }

  // A server is in a later epoch; `why` is its message. False: another server has said so before.
  bool Begin(absl::string_view why, Time now);
  // Attaches again at `home`, or reports that the transition takes long, as due. `answer` receives
  // the result, for TakeAnswer. Error: UNAVAILABLE SERVER_LOST after the reconnect timeout.
  absl::Status Retry(const ServerLink& home, Time now, const Transport::Answer& answer);
  // The home's record, or nothing when another try is to be made. Errors: WRONG_INCARNATION when
  // this trainer has lost its seat, UNKNOWN_JOB, or the home's own.
  absl::StatusOr<std::optional<v1::EpochRecord>> TakeAnswer(const ServerLink& home,
                                                            const absl::StatusOr<Payload>& answer,
                                                            Time now);
  // The session enters the epoch of `record`; `before` are the members of its last one.
  void Enter(const ServerLink& home, const Members& before, const v1::EpochRecord& record,
             Time now);
  // Every reachable server has said Welcome: an open transition with its record ends.
  void End(const ServerLink& home, Time now);
  // Ends the try under way.
  void Abort() { call_.reset(); }

 private:
  void CallAttach(const ServerLink& home, Time now, const Transport::Answer& answer);
  absl::Status CheckRecord(const ServerLink& home, const v1::AttachReply& reply) const;
  absl::Status JobIsForgotten(const ServerLink& home) const;
  void Tell(const ServerLink& home, Pause::Kind kind, Time now);

  const JobView* const job_;
  Transport* const transport_;
  PauseReporter* const pauses_;
  bool open_ = false;
  Time since_;
  Reconnect tries_;                   // "away" until the new record is here
  std::unique_ptr<CallHandle> call_;  // the try under way
  uint32_t epoch_ = 0;                // of the record; 0 until it is here
  std::set<uint32_t> slots_;          // with a new process
  std::set<uint32_t> joined_;         // of these: the seat was empty
  std::set<uint32_t> left_;           // without a process now
};

}  // namespace ballast::client
