#include "server/peer/peer_client.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "proto/convert/frame_codec.h"
#include "proto/convert/job_convert.h"
#include "proto/convert/methods.h"
#include "server/convert/peer_convert.h"
#include "server/peer/peer_caller.h"
#include "server/peer/peer_heartbeat.h"
#include "server/peer/peer_votes.h"

namespace ballast::server {
namespace {

class PeerClientImpl : public PeerClient, public std::enable_shared_from_this<PeerClientImpl> {
 public:
  PeerClientImpl(const PeerLinkConfig& config, Executor* executor, const Clock* clock,
                 std::unique_ptr<PeerTransport> transport)
      : config_(config),
        executor_(executor),
        clock_(clock),
        caller_(config_, std::move(transport)) {}
  ~PeerClientImpl() override { Stop(); }

  void Start(LostCallback lost, VoteCallback voted) override {
    votes_.Start(std::move(voted));
    heartbeat_.Start(std::move(lost));
    if (config_.numbers == nullptr) return;
    config_.numbers->SetAsk([weak = weak_from_this()](uint32_t server) {
      if (const auto self = weak.lock()) self->heartbeat_.AskNow(server);
    });
  }
  void Stop() override {
    if (config_.numbers != nullptr) config_.numbers->SetAsk(nullptr);
    caller_.Stop();
  }
  std::vector<PeerState> Peers() const override { return heartbeat_.Peers(); }

  void CreateJob(uint32_t server, const JobPlan& plan,
                 std::function<void(absl::Status)> done) override {
    SendPlan(method::kPeerCreateJob, server, plan, std::move(done));
  }
  void ExtendJob(uint32_t server, const JobPlan& plan,
                 std::function<void(absl::Status)> done) override {
    SendPlan(method::kPeerExtendJob, server, plan, std::move(done));
  }
  void DropJob(uint32_t server, uint64_t job, std::function<void(absl::Status)> done) override {
    Call(server, Soon(method::kPeerDropJob), MessageBytes(DropToProto(job)),
         StatusOnly(std::move(done)));
  }
  void WhichRest(uint32_t home, const std::vector<uint64_t>& jobs,
                 std::function<void(absl::StatusOr<std::vector<uint64_t>>)> done) override {
    caller_.Call(home, Soon(method::kPeerWhichRest), MessageBytes(ToProto(jobs)),
                 ParseReply<v1::PeerJobs>(std::move(done)));
  }
  void CompareJobs(uint32_t home, const JobRoll& roll,
                   std::function<void(absl::StatusOr<RollAnswer>)> done) override {
    caller_.Call(home, Soon(method::kPeerCompareJobs), MessageBytes(ToProto(roll)),
                 ParseReply<v1::PeerRollReply>(std::move(done)));
  }
  void Seal(uint32_t server, const SealCall& call,
            std::function<void(absl::StatusOr<SealAnswer>)> done) override {
    SendUntilAnswered(method::kPeerSeal, server, MessageBytes(ToProto(call)),
                      ParseReply<v1::PeerSealed>(std::move(done)));
  }
  void AdoptEpoch(uint32_t server, const JobPlan& plan,
                  std::function<void(absl::Status)> done) override {
    SendPlan(method::kPeerAdoptEpoch, server, plan, std::move(done));
  }
  void Snapshot(uint32_t server, const SnapshotCall& call,
                std::function<void(absl::StatusOr<SnapshotAnswer>)> done) override {
    const PeerCallOptions options{method::kPeerSnapshot, kWholeStateTimeout, false, ""};
    Call(server, options, MessageBytes(ToProto(call)),
         ParseReply<v1::PeerSnapshotReply>(std::move(done)));
  }
  void RestoreJob(uint32_t server, const RestoreOrder& order,
                  std::function<void(absl::StatusOr<std::string>)> done) override {
    CallOnceConnected(server, method::kPeerRestoreJob, MessageBytes(ToProto(order)),
                      ParseReply<v1::PeerRestored>(std::move(done)));
  }
  void ExportShare(uint32_t server, const ExportPart& part,
                   std::function<void(absl::Status)> done) override {
    CallOnceConnected(server, method::kPeerExport, MessageBytes(ToProto(part)),
                      StatusOnly(std::move(done)));
  }
  void ImportJob(uint32_t server, const ImportOrder& order,
                 std::function<void(absl::Status)> done) override {
    CallOnceConnected(server, method::kPeerImportJob, MessageBytes(ToProto(order)),
                      StatusOnly(std::move(done)));
  }
  void SendVote(uint64_t job, uint32_t epoch, uint64_t round, uint32_t to_server,
                const Vote& vote) override {
    votes_.Send(job, epoch, round, to_server, vote);
  }
  void DropVotes(uint64_t job) override { votes_.Drop(job); }

 private:
  // A call that is repeated, until give_up, while the peer is away or still starting.
  struct UnderWay {
    const char* method = nullptr;
    uint32_t server = 0;
    Payload bytes;
    std::chrono::nanoseconds give_up{0};
    PeerCaller::Done done;
  };

  // For empty replies.
  static PeerCaller::Done StatusOnly(std::function<void(absl::Status)> done) {
    return
        [done = std::move(done)](const absl::StatusOr<Payload>& answer) { done(answer.status()); };
  }
  // For replies of type Reply: `done` gets FromProto of it.
  template <typename Reply, typename T>
  PeerCaller::Done ParseReply(std::function<void(absl::StatusOr<T>)> done) const {
    return [this, done = std::move(done)](const absl::StatusOr<Payload>& answer) {
      Reply reply;
      const absl::Status parsed = caller_.Parse(answer, &reply);
      parsed.ok() ? done(FromProto(reply)) : done(parsed);
    };
  }
  // For a call that a server answers at once, or not at all.
  PeerCallOptions Soon(const char* method) const {
    return {method, config_.report_after, false, ""};
  }
  // As PeerTimer. A running task keeps this object alive.
  bool After(std::chrono::nanoseconds delay, std::function<void()> task) {
    return executor_->PostAfter(delay, [weak = weak_from_this(), task = std::move(task)] {
      if (const auto self = weak.lock()) task();
    });
  }
  PeerTimer Timer() {
    return [this](std::chrono::nanoseconds delay, std::function<void()> task) {
      return After(delay, std::move(task));
    };
  }

  // As the functions of PeerCaller. A server still starting, or yet to send a number, has not read
  // the call: it is repeated, for report_after at most.
  void Call(uint32_t server, const PeerCallOptions& options, const Payload& bytes,
            PeerCaller::Done done) {
    TryUntilTaken(
        [=, this](PeerCaller::Done answered) {
          caller_.Call(server, options, bytes, std::move(answered));
        },
        std::move(done), clock_->Now() + config_.report_after);
  }
  void CallOnceConnected(uint32_t server, const char* method, const Payload& bytes,
                         PeerCaller::Done done) {
    TryUntilTaken(
        [=, this](PeerCaller::Done answered) {
          caller_.CallOnceConnected(server, method, bytes, std::move(answered));
        },
        std::move(done), clock_->Now() + config_.report_after);
  }
  void TryUntilTaken(std::function<void(PeerCaller::Done)> call, PeerCaller::Done done,
                     std::chrono::nanoseconds give_up);

  void SendPlan(const char* method, uint32_t server, const JobPlan& plan,
                std::function<void(absl::Status)> done) {
    SendUntilAnswered(method, server, MessageBytes(ToProto(plan)), StatusOnly(std::move(done)));
  }
  void SendUntilAnswered(const char* method, uint32_t server, const Payload& bytes,
                         PeerCaller::Done done);
  void Try(const std::shared_ptr<UnderWay>& call);
  void OnAnswer(const std::shared_ptr<UnderWay>& call, const absl::StatusOr<Payload>& answer);

  const PeerLinkConfig config_;
  Executor* const executor_;
  const Clock* const clock_;
  PeerCaller caller_;
  PeerHeartbeat heartbeat_{config_, &caller_, clock_, Timer()};
  PeerVotes votes_{
      config_, &caller_, clock_, Timer(),
      [this](uint32_t server, const std::string& why) { heartbeat_.Lost(server, why, true); }};
};

void PeerClientImpl::TryUntilTaken(std::function<void(PeerCaller::Done)> call,
                                   PeerCaller::Done done, std::chrono::nanoseconds give_up) {
  call([=, this](const absl::StatusOr<Payload>& answer) {
    if (IsStillStarting(answer.status()) && clock_->Now() + kPeerRetryDelay < give_up &&
        After(kPeerRetryDelay, [=, this] { TryUntilTaken(call, done, give_up); })) {
      return;
    }
    done(answer);
  });
}

void PeerClientImpl::SendUntilAnswered(const char* method, uint32_t server, const Payload& bytes,
                                       PeerCaller::Done done) {
  auto under_way = std::make_shared<UnderWay>();
  under_way->method = method;
  under_way->server = server;
  under_way->bytes = bytes;
  under_way->give_up = clock_->Now() + config_.create_timeout;
  under_way->done = std::move(done);
  Try(under_way);
}

void PeerClientImpl::Try(const std::shared_ptr<UnderWay>& call) {
  const PeerCallOptions options{call->method, call->give_up - clock_->Now(), true, ""};
  caller_.Call(call->server, options, call->bytes,
               [this, call](const absl::StatusOr<Payload>& answer) { OnAnswer(call, answer); });
}

void PeerClientImpl::OnAnswer(const std::shared_ptr<UnderWay>& call,
                              const absl::StatusOr<Payload>& answer) {
  const absl::Status& status = answer.status();
  const Reason reason = ReasonOf(status);
  const bool starts = IsStillStarting(status);
  const bool away = reason == Reason::kUnspecified || reason == Reason::kShuttingDown;
  heartbeat_.SetStarts(call->server, starts);
  if (!MayPass(status) || (!starts && !away)) return call->done(answer);
  if (clock_->Now() + kPeerRetryDelay < call->give_up &&
      After(kPeerRetryDelay, [this, call] { Try(call); })) {
    return;
  }
  heartbeat_.SetStarts(call->server, false);
  if (starts) return call->done(answer);  // The caller may ask again.
  ErrorFields fields;
  fields.server = static_cast<int>(call->server);
  fields.address = caller_.AddressOf(call->server);
  call->done(ReasonedError(
      absl::StatusCode::kUnavailable, Reason::kServerLost,
      absl::StrCat("server ", call->server, " does not answer: ", status.message()), fields));
}

}  // namespace

std::shared_ptr<PeerClient> PeerClient::Create(const PeerLinkConfig& config, Executor* executor,
                                               const Clock* clock,
                                               std::unique_ptr<PeerTransport> transport) {
  return std::make_shared<PeerClientImpl>(config, executor, clock, std::move(transport));
}

}  // namespace ballast::server
