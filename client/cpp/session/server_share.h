// One server's share of a job: its extents, the initial weights it lacks, and its part of the
// running activity. Comes from: ServerLink. Goes to: ServerLink, which forms the frames. Thread
// safety: none; lives under the session's lock.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "ballast/v1/data.pb.h"
#include "client/cpp/job/activity.h"
#include "client/cpp/job/job_view.h"
#include "client/cpp/job/send_plan.h"

namespace ballast::client {

class ServerShare {
 public:
  // `job` outlives the share.
  ServerShare(uint32_t server_id, const JobView* job)
      : server_id_(server_id), job_(job), plan_(&job->layout, job->limits) {}

  // Takes over the extents that the plan gives this server, in push order.
  void TakeOwned();
  const std::vector<uint32_t>& owned() const { return owned_; }
  uint64_t weight_bytes() const { return weight_bytes_; }  // of the owned extents
  uint64_t elements() const { return elements_; }
  void SetWindow(uint32_t extents) { plan_.SetWindow(extents); }

  // A new link follows, on which nothing of the activity is agreed yet.
  void OnNewLink();

  // Initial weights that the server lacks; the lead trainer sends them before the next round.
  void ForgetMissing() { missing_.clear(); }
  // False: no longer possible. Rounds have changed the weights of `extent`, or with `answered` the
  // running one has.
  bool NoteMissing(uint32_t extent, bool answered);
  // All owned extents from `first_extent` on are missing, and none of them was so far.
  void AddMissing(uint32_t first_extent);
  size_t missing_count() const { return missing_.size(); }
  // Plans the missing extents from `first_extent` on, which then count as sent. Memory of older
  // extents is not lent to this activity; those wait for the next step.
  void SendMissing(uint32_t first_extent);

  // Plans the round's frames and returns true, or first those of missing initial weights: a server
  // that lacks them refuses a RoundBegin. True: the RoundBegin goes out now.
  bool StartStep(const Step& step);
  // As StartStep for a round that went over another link before; the server has `complete` already.
  bool ResumeStep(const Step& step, const std::vector<uint32_t>& complete);
  // Progress at the server. True: the server has the initial weights, and the RoundBegin of `step`,
  // the running step if any, goes out now.
  bool OnAck(const v1::Ack& ack, const Step* step);
  // As SendPlan::OnRefused.
  absl::Status OnRefused(const v1::FrameRefused& refused);
  void RetryRefused() { plan_.RetryRefused(); }

  // The next range that window and credits allow, and the kind of its frame.
  std::optional<FrameRange> NextRange() { return plan_.Next(); }
  FrameKind kind() const { return kind_; }
  uint64_t plan_number() const { return plan_.number(); }
  // Every byte of the upload, or of the round, has arrived.
  bool all_received() const { return !restoring_ && plan_.all_received(); }

 private:
  bool Begin(const Step& step);
  bool BeginRound(const Step& step);

  const uint32_t server_id_;
  const JobView* const job_;
  SendPlan plan_;
  std::vector<uint32_t> owned_;
  uint64_t weight_bytes_ = 0;
  uint64_t elements_ = 0;
  std::vector<uint32_t> missing_;
  FrameKind kind_ = FrameKind::kUnspecified;  // of the frames in plan_
  bool restoring_ = false;                    // initial weights go before the round
  bool resumed_ = false;                      // the round went over another link before
  std::vector<uint32_t> complete_;            // extents already at the server
};

}  // namespace ballast::client
