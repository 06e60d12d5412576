// Progress of one round over all servers of the job; checks that they agree.
// Comes from: Session (the servers' answers). Goes to: Session, the caller's RoundReport.
// Thread safety: none; lives under the session's lock.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "ballast/client.h"
#include "ballast/v1/data.pb.h"
#include "client/cpp/job/policy_view.h"
#include "common/job/round_result.h"

namespace ballast::client {

class RoundProgress {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // `server_ids` in stream order; `owned_bytes` are the weight bytes each of them owns.
  RoundProgress(uint64_t round, std::vector<uint32_t> server_ids, std::vector<uint64_t> owned_bytes,
                Time start);

  // The three kinds of answers of server number `index`. Errors: ABORTED VOTE_MISMATCH when the
  // servers' results differ; INTERNAL when an answer is doubled, of another round, or out of order.
  absl::Status OnResult(size_t index, const RoundResult& result, Time now);
  absl::Status OnWeight(size_t index, uint64_t version, uint64_t bytes, Time now);
  absl::Status OnDone(size_t index, const v1::RoundDone& done);
  // ServerProgress number `index`, which is not done, went away: its answers so far no longer
  // count. Its next result must still equal those seen before.
  void Restart(size_t index);
  // Every pushed byte has been acknowledged. The first call counts.
  void OnPushed(Time now);

  uint64_t round() const { return round_; }
  // Some server has sent its result, so every server has the vote that it gave on its disk.
  bool decided() const { return has_result_; }
  bool answered(size_t index) const { return servers_[index].has_result; }
  bool done(size_t index) const { return servers_[index].done; }
  bool all_results() const { return results_ == servers_.size(); }
  bool complete() const { return done_ == servers_.size(); }
  // Ids of the servers whose result, or last weight, is missing.
  std::vector<uint32_t> Missing() const;

  // Whether the round was halted, and the details of an unapplied one. The round must be complete.
  bool halted() const { return result_.halted; }
  UnappliedRound Unapplied() const;
  // After the round, which must be complete.
  PolicyView Policy() const;
  // Everything but policy, bytes_up, the pauses and nonfinite_element. The round must be complete.
  RoundReport Report(Time now) const;

 private:
  struct ServerProgress {
    uint32_t id = 0;
    uint64_t owned_bytes = 0;
    bool has_result = false;
    bool done = false;
    uint64_t weight_bytes = 0;  // announced
    uint64_t received_bytes = 0;
  };

  absl::Status Malformed(size_t index, const char* what) const;

  const uint64_t round_;
  std::vector<ServerProgress> servers_;
  const Time start_;
  Time pushed_;
  Time decided_;
  Time last_weight_;
  bool has_pushed_ = false;
  bool has_result_ = false;  // result_ is set
  size_t results_ = 0;
  size_t done_ = 0;
  RoundResult result_;  // of the first server that answered; phase times are maxima
  uint64_t step_ns_ = 0;
  uint64_t weight_overflows_ = 0;
};

}  // namespace ballast::client
