#include "server/peer/peer_votes.h"

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "common/faults/mutant.h"
#include "proto/convert/frame_codec.h"
#include "proto/convert/job_convert.h"
#include "proto/convert/methods.h"

namespace ballast::server {

void PeerVotes::Start(PeerClient::VoteCallback voted) {
  MutexLock lock(&mu_);
  voted_ = std::move(voted);
}

void PeerVotes::Drop(uint64_t job) {
  MutexLock lock(&mu_);
  std::erase_if(newest_, [job](const auto& entry) { return entry.first.first == job; });
}

void PeerVotes::Send(uint64_t job, uint32_t epoch, uint64_t round, uint32_t to_server,
                     const Vote& vote) {
  v1::Prepare message;
  message.set_job(job);
  message.set_epoch(epoch);
  message.set_round(round);
  ballast::ToProto(vote, &message);
  auto under_way = std::make_shared<UnderWay>();
  under_way->job = job;
  under_way->server = to_server;
  under_way->epoch = epoch;
  under_way->round = round;
  under_way->bytes = MessageBytes(message);
  under_way->give_up = clock_->Now() + config_.report_after;
  {
    MutexLock lock(&mu_);
    newest_[{job, to_server}] = under_way;
  }
  Try(std::move(under_way));
}

void PeerVotes::Try(std::shared_ptr<UnderWay> vote) {
  const PeerCallOptions options{method::kPeerVote, config_.report_after, false, ""};
  caller_->Call(vote->server, options, vote->bytes,
                [this, vote](const absl::StatusOr<Payload>& answer) { OnAnswer(vote, answer); });
}

void PeerVotes::OnAnswer(const std::shared_ptr<UnderWay>& vote,
                         const absl::StatusOr<Payload>& answer) {
  if (answer.ok()) return OnReply(*vote, answer);
  const absl::Status& status = answer.status();
  if (status.code() == absl::StatusCode::kCancelled || Superseded(vote)) return;
  if (ReasonOf(status) == Reason::kStateLost) return Report(*vote, status);
  // A newly started peer may not know its jobs yet.
  const bool again = MayPass(status) || ReasonOf(status) == Reason::kUnknownJob;
  if (again && !BALLAST_MUTANT(kVoteOfferedOnce)) return OfferAgain(vote, status);
  BALLAST_LOG(WARN, LogField("server", vote->server), LogField("round", vote->round))
      << "vote refused: " << status;
}

void PeerVotes::OnReply(const UnderWay& vote, const absl::StatusOr<Payload>& answer) {
  v1::VoteReply reply;
  if (!caller_->Parse(answer, &reply).ok() || !reply.has_vote()) return;
  const absl::StatusOr<Vote> theirs = VoteFromProto(reply.vote());
  if (theirs.ok() && theirs->server == vote.server) Report(vote, *theirs);
}

void PeerVotes::OfferAgain(const std::shared_ptr<UnderWay>& vote, const absl::Status& status) {
  if (MayPass(status) && clock_->Now() >= vote->give_up) {
    vote->give_up = std::chrono::nanoseconds::max();  // Reported once; the vote is still offered.
    not_taken_(vote->server, absl::StrCat("it does not take votes: ", status.message()));
  }
  after_(kPeerRetryDelay, [this, vote] { Try(vote); });
}

void PeerVotes::Report(const UnderWay& vote, const absl::StatusOr<Vote>& answer) {
  PeerClient::VoteCallback voted;
  {
    MutexLock lock(&mu_);
    voted = voted_;
  }
  if (voted) voted(vote.job, vote.epoch, vote.round, answer);
}

bool PeerVotes::Superseded(const std::shared_ptr<UnderWay>& vote) const {
  MutexLock lock(&mu_);
  const auto newest = newest_.find({vote->job, vote->server});
  return newest == newest_.end() || newest->second != vote;
}

}  // namespace ballast::server
