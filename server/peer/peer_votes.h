// The votes that this server offers to its peers. A vote is offered until the peer takes it or a
// newer vote of the same job replaces it; an answer may bring the peer's own vote.
// Comes from: RoundEngine, through PeerClient (VoteSink). Goes to: PeerCaller, and back as answers.
// Thread safety: thread-safe. Callbacks run on the threads of PeerCaller; no lock is held then.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/sync.h"
#include "server/peer/peer_caller.h"
#include "server/peer/peer_client.h"

namespace ballast::server {

class PeerVotes {
 public:
  // A peer has not taken a vote for report_after; reported once per vote.
  using NotTaken = std::function<void(uint32_t server, const std::string& why)>;

  // `config`, `caller` and `clock` outlive this.
  PeerVotes(const PeerLinkConfig& config, PeerCaller* caller, const Clock* clock, PeerTimer after,
            NotTaken not_taken)
      : config_(config),
        caller_(caller),
        clock_(clock),
        after_(std::move(after)),
        not_taken_(std::move(not_taken)) {}
  PeerVotes(const PeerVotes&) = delete;
  PeerVotes& operator=(const PeerVotes&) = delete;

  // From now on `voted` receives the answers.
  void Start(PeerClient::VoteCallback voted);
  // As VoteSink.
  void Send(uint64_t job, uint32_t epoch, uint64_t round, uint32_t to_server, const Vote& vote);
  void Drop(uint64_t job);

 private:
  struct UnderWay {
    uint64_t job = 0;
    uint32_t server = 0;
    uint32_t epoch = 0;
    uint64_t round = 0;
    Payload bytes;
    std::chrono::nanoseconds give_up{0};  // then the peer counts as lost
  };

  void Try(std::shared_ptr<UnderWay> vote);
  void OnAnswer(const std::shared_ptr<UnderWay>& vote, const absl::StatusOr<Payload>& answer);
  void OnReply(const UnderWay& vote, const absl::StatusOr<Payload>& answer);
  void OfferAgain(const std::shared_ptr<UnderWay>& vote, const absl::Status& status);
  void Report(const UnderWay& vote, const absl::StatusOr<Vote>& answer);
  bool Superseded(const std::shared_ptr<UnderWay>& vote) const;

  const PeerLinkConfig& config_;
  PeerCaller* const caller_;
  const Clock* const clock_;
  const PeerTimer after_;
  const NotTaken not_taken_;

  mutable Mutex mu_;
  PeerClient::VoteCallback voted_ ABSL_GUARDED_BY(mu_);
  // By (job, server): only these votes are offered again.
  std::map<std::pair<uint64_t, uint32_t>, std::shared_ptr<UnderWay>> newest_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ballast::server
