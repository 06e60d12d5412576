#include "server/peer/peer_client.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "proto/convert/grpc_message.h"
#include "proto/convert/job_convert.h"
#include "proto/convert/methods.h"
#include "server/convert/convert.h"
#include "server/peer/peer_caller.h"
#include "server/peer/peer_heartbeat.h"
#include "server/peer/peer_votes.h"

namespace ballast::server {
namespace {

class PeerClientImpl : public PeerClient, public std::enable_shared_from_this<PeerClientImpl> {
 public:
  PeerClientImpl(const PeerLinkConfig& config, Executor* executor, const Clock* clock,
                 grpc::CompletionQueue* queue)
      : config_(config), executor_(executor), clock_(clock), caller_(config_, queue) {}
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
  void DropJob(uint32_t server, uint64_t job, std::function<void(absl::Status)> done) override;
  void WhichRest(uint32_t home, const std::vector<uint64_t>& jobs,
                 std::function<void(absl::StatusOr<std::vector<uint64_t>>)> done) override;
  void CompareJobs(uint32_t home, const JobRoll& roll,
                   std::function<void(absl::StatusOr<RollAnswer>)> done) override {
    const PeerCallOptions options{method::kPeerCompareJobs, config_.report_after, false};
    caller_.Call(home, options, SerializeMessage(RollToProto(roll)),
                 ParseReply<v1::PeerRollReply>(std::move(done), RollAnswerFromProto));
  }
  void Seal(uint32_t server, const SealCall& call,
            std::function<void(absl::StatusOr<SealAnswer>)> done) override;
  void AdoptEpoch(uint32_t server, const JobPlan& plan,
                  std::function<void(absl::Status)> done) override {
    SendPlan(method::kPeerAdoptEpoch, server, plan, std::move(done));
  }
  void Snapshot(uint32_t server, const SnapshotCall& call,
                std::function<void(absl::StatusOr<uint64_t>)> done) override;
  void Export(uint32_t server, const ExportPart& part,
              std::function<void(absl::Status)> done) override;
  void ImportJob(uint32_t server, const ImportOrder& order,
                 std::function<void(absl::Status)> done) override;
  void RestoreJob(uint32_t server, const RestoreOrder& order,
                  std::function<void(absl::StatusOr<std::string>)> done) override;
  void SendVote(uint64_t job, uint32_t epoch, uint64_t round, uint32_t to_server,
                const Vote& vote) override {
    votes_.Send(job, epoch, round, to_server, vote);
  }
  void DropVotes(uint64_t job) override { votes_.Drop(job); }

 private:
  // A call about a plan: repeated, until give_up, while the peer is away or still starting.
  struct PlanUnderWay {
    const char* method = nullptr;
    uint32_t server = 0;
    grpc::ByteBuffer bytes;
    std::chrono::nanoseconds give_up{0};
    std::function<void(absl::Status)> done;
    std::function<void(const grpc::ByteBuffer&)> replied;  // before done, when OK; may be empty
  };

  // For empty replies.
  static PeerCaller::Done StatusOnly(std::function<void(absl::Status)> done) {
    return [done = std::move(done)](const absl::Status& status, const grpc::ByteBuffer&) {
      done(status);
    };
  }
  // For replies of type Reply; `read` converts one to the argument of `done`.
  template <typename Reply, typename T, typename Read>
  PeerCaller::Done ParseReply(std::function<void(absl::StatusOr<T>)> done, Read read) const {
    return [this, read, done = std::move(done)](const absl::Status& status,
                                                const grpc::ByteBuffer& bytes) {
      if (!status.ok()) return done(status);
      Reply reply;
      const absl::Status parsed = caller_.Parse(bytes, &reply);
      parsed.ok() ? done(read(reply)) : done(parsed);
    };
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
  void Call(uint32_t server, const PeerCallOptions& options, const grpc::ByteBuffer& bytes,
            PeerCaller::Done done) {
    TryUntilTaken(
        [=, this](PeerCaller::Done answered) {
          caller_.Call(server, options, bytes, std::move(answered));
        },
        std::move(done), clock_->Now() + config_.report_after);
  }
  void CallOnceConnected(uint32_t server, const char* method, const grpc::ByteBuffer& bytes,
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
                std::function<void(absl::Status)> done);
  void TryPlan(std::shared_ptr<PlanUnderWay> plan);
  void OnPlanAnswer(const std::shared_ptr<PlanUnderWay>& plan, const absl::Status& status);

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
  call([=, this](const absl::Status& status, const grpc::ByteBuffer& reply) {
    if (IsStillStarting(status) && clock_->Now() + kPeerRetryDelay < give_up &&
        After(kPeerRetryDelay, [=, this] { TryUntilTaken(call, done, give_up); })) {
      return;
    }
    done(status, reply);
  });
}

void PeerClientImpl::SendPlan(const char* method, uint32_t server, const JobPlan& plan,
                              std::function<void(absl::Status)> done) {
  auto under_way = std::make_shared<PlanUnderWay>();
  under_way->method = method;
  under_way->server = server;
  under_way->bytes = SerializeMessage(PeerJobToProto(plan));
  under_way->give_up = clock_->Now() + config_.create_timeout;
  under_way->done = std::move(done);
  TryPlan(std::move(under_way));
}

void PeerClientImpl::TryPlan(std::shared_ptr<PlanUnderWay> plan) {
  const PeerCallOptions options{plan->method, plan->give_up - clock_->Now(), true};
  caller_.Call(plan->server, options, plan->bytes,
               [this, plan](const absl::Status& status, const grpc::ByteBuffer& reply) {
                 if (status.ok() && plan->replied) plan->replied(reply);
                 OnPlanAnswer(plan, status);
               });
}

void PeerClientImpl::OnPlanAnswer(const std::shared_ptr<PlanUnderWay>& plan,
                                  const absl::Status& status) {
  const Reason reason = ReasonOf(status);
  const bool starts = IsStillStarting(status);
  const bool away = reason == Reason::kUnspecified || reason == Reason::kShuttingDown;
  heartbeat_.SetStarts(plan->server, starts);
  if (!MayPass(status) || (!starts && !away)) return plan->done(status);
  if (clock_->Now() + kPeerRetryDelay < plan->give_up &&
      After(kPeerRetryDelay, [this, plan] { TryPlan(plan); })) {
    return;
  }
  heartbeat_.SetStarts(plan->server, false);
  if (starts) return plan->done(status);  // The caller may ask again.
  ErrorFields fields;
  fields.server = static_cast<int>(plan->server);
  fields.address = caller_.AddressOf(plan->server);
  plan->done(ReasonedError(
      absl::StatusCode::kUnavailable, Reason::kServerLost,
      absl::StrCat("server ", plan->server, " does not answer: ", status.message()), fields));
}

void PeerClientImpl::Seal(uint32_t server, const SealCall& call,
                          std::function<void(absl::StatusOr<SealAnswer>)> done) {
  v1::PeerSeal message;
  message.set_job(call.job);
  message.set_epoch(call.epoch);
  message.set_world(call.world);
  const auto answer =
      std::make_shared<absl::StatusOr<SealAnswer>>(absl::InternalError("no answer"));
  auto under_way = std::make_shared<PlanUnderWay>();
  under_way->method = method::kPeerSeal;
  under_way->server = server;
  under_way->bytes = SerializeMessage(message);
  under_way->give_up = clock_->Now() + config_.create_timeout;
  under_way->replied = [this, answer](const grpc::ByteBuffer& reply) {
    v1::PeerSealed sealed;
    if (const absl::Status parsed = caller_.Parse(reply, &sealed); !parsed.ok()) {
      *answer = parsed;
      return;
    }
    *answer = SealedFromProto(sealed);
  };
  under_way->done = [answer, done = std::move(done)](const absl::Status& status) {
    done(status.ok() ? *answer : status);
  };
  TryPlan(std::move(under_way));
}

void PeerClientImpl::DropJob(uint32_t server, uint64_t job,
                             std::function<void(absl::Status)> done) {
  v1::PeerDropJob message;
  message.set_job(job);
  const PeerCallOptions options{method::kPeerDropJob, config_.report_after, false};
  Call(server, options, SerializeMessage(message), StatusOnly(std::move(done)));
}

void PeerClientImpl::WhichRest(uint32_t home, const std::vector<uint64_t>& jobs,
                               std::function<void(absl::StatusOr<std::vector<uint64_t>>)> done) {
  v1::PeerJobs message;
  message.mutable_jobs()->Add(jobs.begin(), jobs.end());
  const PeerCallOptions options{method::kPeerWhichRest, config_.report_after, false};
  caller_.Call(home, options, SerializeMessage(message),
               ParseReply<v1::PeerJobs>(std::move(done), [](const v1::PeerJobs& rest) {
                 return std::vector<uint64_t>(rest.jobs().begin(), rest.jobs().end());
               }));
}

// --- Snapshots ----------------------------------------------------------------------------------

void PeerClientImpl::Snapshot(uint32_t server, const SnapshotCall& call,
                              std::function<void(absl::StatusOr<uint64_t>)> done) {
  v1::PeerSnapshot message;
  message.set_job(call.job);
  message.set_snapshot(call.snapshot);
  message.set_step(static_cast<v1::SnapshotStep>(call.step));
  message.set_round(call.round);
  message.set_tenant(TenantToProto(call.tenant));
  const PeerCallOptions options{method::kPeerSnapshot, kWholeStateTimeout, false};
  Call(server, options, SerializeMessage(message),
       ParseReply<v1::PeerSnapshotReply>(
           std::move(done), [](const v1::PeerSnapshotReply& reply) { return reply.round(); }));
}

void PeerClientImpl::RestoreJob(uint32_t server, const RestoreOrder& order,
                                std::function<void(absl::StatusOr<std::string>)> done) {
  v1::PeerRestoreJob message;
  *message.mutable_job() = PeerJobToProto(order.plan);
  message.set_snapshot(order.snapshot);
  message.set_share(order.share);
  CallOnceConnected(
      server, method::kPeerRestoreJob, SerializeMessage(message),
      ParseReply<v1::PeerRestored>(std::move(done),
                                   [](const v1::PeerRestored& reply) { return reply.copied(); }));
}

void PeerClientImpl::Export(uint32_t server, const ExportPart& part,
                            std::function<void(absl::Status)> done) {
  v1::PeerExport message;
  message.set_snapshot(part.snapshot);
  message.set_name(part.name);
  message.set_dtype(static_cast<v1::DType>(part.options.dtype));
  message.set_state(part.options.state);
  message.set_shard(part.shard);
  message.set_shards(part.options.shards);
  message.set_format(static_cast<v1::ExportFormat>(part.options.format));
  message.set_torch_optimizer(part.options.torch_optimizer);
  message.set_tenant(TenantToProto(part.tenant));
  CallOnceConnected(server, method::kPeerExport, SerializeMessage(message),
                    StatusOnly(std::move(done)));
}

void PeerClientImpl::ImportJob(uint32_t server, const ImportOrder& order,
                               std::function<void(absl::Status)> done) {
  v1::PeerImportJob message;
  *message.mutable_job() = PeerJobToProto(order.plan);
  message.set_from(order.from);
  message.set_state(order.state);
  CallOnceConnected(server, method::kPeerImportJob, SerializeMessage(message),
                    StatusOnly(std::move(done)));
}

}  // namespace

std::shared_ptr<PeerClient> PeerClient::Create(const PeerLinkConfig& config, Executor* executor,
                                               const Clock* clock, grpc::CompletionQueue* queue) {
  return std::make_shared<PeerClientImpl>(config, executor, clock, queue);
}

}  // namespace ballast::server
