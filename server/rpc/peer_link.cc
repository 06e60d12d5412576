#include "server/rpc/peer_link.h"

#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "common/base/sync.h"
#include "common/base/thread_executor.h"
#include "common/base/units.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "proto/convert/channel.h"
#include "proto/convert/frame_codec.h"
#include "proto/convert/job_convert.h"
#include "proto/convert/methods.h"
#include "proto/convert/status_convert.h"
#include "server/rpc/convert.h"
#include "server/rpc/generic_server.h"

namespace ballast::server {
namespace {

constexpr std::chrono::milliseconds kRetryDelay(50);
// Of a call that reads or writes the whole state; a peer that dies breaks it off before.
constexpr std::chrono::hours kWholeState(24);

using Done = std::function<void(const absl::Status& status, const grpc::ByteBuffer& reply)>;

// One unary call under way; deleted by its owner once it has come back.
struct PeerCall : public CompletionTag {
  void OnEvent(bool) override { finished(this); }

  grpc::ClientContext context;
  grpc::ByteBuffer reply;
  grpc::Status status;
  std::unique_ptr<grpc::ClientAsyncResponseReader<grpc::ByteBuffer>> reader;
  Done done;
  std::function<void(PeerCall*)> finished;
};

// What a call needs beside its request.
struct CallOptions {
  const char* method = nullptr;
  std::chrono::nanoseconds timeout{0};
  bool wait_for_ready = false;  // wait for a connection instead of failing at once
};

bool MayPass(const absl::Status& status) {
  return status.code() == absl::StatusCode::kUnavailable ||
         status.code() == absl::StatusCode::kDeadlineExceeded;
}

class PeerClientImpl : public PeerClient, public std::enable_shared_from_this<PeerClientImpl> {
 public:
  PeerClientImpl(const PeerLinkConfig& config, Executor* executor, const Clock* clock,
                 grpc::CompletionQueue* queue)
      : config_(config), executor_(executor), clock_(clock), queue_(queue) {
    grpc::ChannelArguments args = MakeChannelArgs(config.time_scale);
    args.SetMaxReceiveMessageSize(config.max_message_bytes);
    args.SetMaxSendMessageSize(config.max_message_bytes);
    for (const ServerAddress& server : config.servers) {
      if (server.id == config.self) continue;
      Peer& peer = peers_[server.id];
      peer.address = server.address;
      peer.connection = std::make_unique<grpc::GenericStub>(MakeChannel(server.address, args));
    }
    if (queue_ != nullptr) return;
    own_queue_ = std::make_unique<grpc::CompletionQueue>();
    queue_ = own_queue_.get();
    poller_ = std::make_unique<ThreadExecutor>("peers", 1);
    poller_->Post([this] { PollUntilShutdown(own_queue_.get()); });
  }

  ~PeerClientImpl() override { Stop(); }

  void Start(LostCallback lost, VoteCallback voted) override {
    {
      MutexLock lock(&mu_);
      lost_ = std::move(lost);
      voted_ = std::move(voted);
    }
    Beat();
  }

  void Stop() override;
  std::vector<PeerState> Peers() const override;

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
  void Seal(uint32_t server, uint64_t job, uint32_t epoch,
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
                const Vote& vote) override;
  void DropVotes(uint64_t job) override {
    MutexLock lock(&mu_);
    std::erase_if(newest_votes_, [job](const auto& entry) { return entry.first.first == job; });
  }

 private:
  struct Peer {
    std::string address;
    std::unique_ptr<grpc::GenericStub> connection;
    bool reachable = false;
    bool starts = false;       // as it said to the newest call about a plan
    bool asking = false;       // a Hello is under way
    bool asked_twice = false;  // the one before it found no connection
    std::chrono::nanoseconds last_heard{0};
    uint64_t incarnation = 0;
  };
  struct VoteUnderWay {
    uint64_t job = 0;
    uint32_t server = 0;
    uint32_t epoch = 0;
    uint64_t round = 0;
    grpc::ByteBuffer bytes;
    std::chrono::nanoseconds give_up{0};  // then the peer counts as lost
  };

  void Call(uint32_t server, const CallOptions& options, const grpc::ByteBuffer& request,
            Done done);
  // For replies that say nothing.
  static Done StatusOnly(std::function<void(absl::Status)> done) {
    return [done = std::move(done)](const absl::Status& status, const grpc::ByteBuffer&) {
      done(status);
    };
  }
  // For replies that are a Reply, of which `read` makes what `done` gets.
  template <typename Reply, typename T, typename Read>
  Done ParseReply(std::function<void(absl::StatusOr<T>)> done, Read read) const {
    const auto limit = static_cast<size_t>(config_.max_message_bytes);
    return [=, done = std::move(done)](const absl::Status& status, const grpc::ByteBuffer& bytes) {
      if (!status.ok()) return done(status);
      Reply reply;
      const absl::Status parsed = ParseMessage(bytes, limit, &reply);
      parsed.ok() ? done(read(reply)) : done(parsed);
    };
  }
  // A call that takes long. One that cannot wait for ever for its server must not fail because that
  // was started again just now, either: a Hello waits for the connection first, for report_after.
  void CallOnceConnected(uint32_t server, const char* method, const grpc::ByteBuffer& request,
                         Done done);
  grpc::ByteBuffer OwnHello() const;
  void Finished(PeerCall* call);
  struct PlanUnderWay {
    const char* method = nullptr;
    uint32_t server = 0;
    grpc::ByteBuffer bytes;
    std::chrono::nanoseconds give_up{0};
    std::function<void(absl::Status)> done;
    std::function<void(const grpc::ByteBuffer&)> replied;  // before done, when OK; may be empty
  };

  void SendPlan(const char* method, uint32_t server, const JobPlan& plan,
                std::function<void(absl::Status)> done);
  void TryPlan(std::shared_ptr<PlanUnderWay> plan);
  void OnPlanAnswer(const std::shared_ptr<PlanUnderWay>& plan, const absl::Status& status);
  void SetStarts(uint32_t server, bool starts);
  void TryVote(std::shared_ptr<VoteUnderWay> vote);
  void OnVoteAnswer(const std::shared_ptr<VoteUnderWay>& vote, const absl::Status& status,
                    const grpc::ByteBuffer& reply);
  void TellAnswer(const VoteUnderWay& vote, const absl::StatusOr<Vote>& answer);
  bool Superseded(const std::shared_ptr<VoteUnderWay>& vote);

  void Beat();
  void Ask(uint32_t server);
  void OnHello(uint32_t server, const absl::Status& status, const grpc::ByteBuffer& reply);
  absl::Status CheckHello(uint32_t server, const v1::PeerHello& hello) const;
  void Heard(uint32_t server, uint64_t incarnation);
  void NotHeard(uint32_t server, const absl::Status& status);
  // Reports a peer that was reachable; with `always` also one that never was.
  void Lost(uint32_t server, const std::string& why, bool always = false);

  const PeerLinkConfig config_;
  Executor* const executor_;
  const Clock* const clock_;
  grpc::CompletionQueue* queue_;  // constant after construction

  mutable Mutex mu_;
  CondVar changed_;
  std::map<uint32_t, Peer> peers_;  // keys, addresses and connections are constant
  std::set<PeerCall*> calls_ ABSL_GUARDED_BY(mu_);
  LostCallback lost_ ABSL_GUARDED_BY(mu_);
  VoteCallback voted_ ABSL_GUARDED_BY(mu_);
  // By (job, server): others are not offered any more.
  std::map<std::pair<uint64_t, uint32_t>, std::shared_ptr<VoteUnderWay>> newest_votes_
      ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ = false;

  // Null when another's queue is used. Last: the thread uses all of the above.
  std::unique_ptr<grpc::CompletionQueue> own_queue_;
  std::unique_ptr<Executor> poller_;
};

void PeerClientImpl::Stop() {
  if (std::exchange(stopped_, true)) return;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    for (PeerCall* call : calls_) call->context.TryCancel();
    while (!calls_.empty()) changed_.Wait(&mu_);
  }
  if (own_queue_ == nullptr) return;
  own_queue_->Shutdown();
  poller_->Shutdown();
}

std::vector<PeerState> PeerClientImpl::Peers() const {
  MutexLock lock(&mu_);
  std::vector<PeerState> states;
  for (const auto& [id, peer] : peers_) {
    states.push_back({id, peer.address, peer.reachable && !peer.starts});
  }
  return states;
}

void PeerClientImpl::Call(uint32_t server, const CallOptions& options,
                          const grpc::ByteBuffer& request, Done done) {
  const auto peer = peers_.find(server);
  if (peer == peers_.end()) {
    done(absl::NotFoundError(absl::StrCat("server ", server, " is not of this cluster")), {});
    return;
  }
  auto call = std::make_unique<PeerCall>();
  call->context.set_deadline(std::chrono::system_clock::now() +
                             std::chrono::ceil<std::chrono::microseconds>(options.timeout));
  call->context.set_wait_for_ready(options.wait_for_ready);
  {
    MutexLock lock(&mu_);
    if (!stopping_) {
      call->done = std::move(done);
      call->finished = [this](PeerCall* finished) { Finished(finished); };
      call->reader = peer->second.connection->PrepareUnaryCall(&call->context, options.method,
                                                               request, queue_);
      call->reader->StartCall();
      calls_.insert(call.get());
      PeerCall* const tag = call.release();
      tag->reader->Finish(&tag->reply, &tag->status, tag);
      return;
    }
  }
  done(absl::CancelledError("this server is shutting down"), {});
}

void PeerClientImpl::CallOnceConnected(uint32_t server, const char* method,
                                       const grpc::ByteBuffer& request, Done done) {
  const CallOptions hello{method::kPeerHello, config_.report_after, true};
  Call(server, hello, OwnHello(),
       [=, this, done = std::move(done)](const absl::Status&, const grpc::ByteBuffer&) {
         Call(server, {method, kWholeState, false}, request, done);
       });
}

void PeerClientImpl::Finished(PeerCall* call) {
  const std::unique_ptr<PeerCall> owned(call);
  call->done(FromGrpc(call->status), call->reply);
  MutexLock lock(&mu_);
  calls_.erase(call);
  changed_.NotifyAll();
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
  const CallOptions options{plan->method, plan->give_up - clock_->Now(), true};
  Call(plan->server, options, plan->bytes,
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
  SetStarts(plan->server, starts);
  if (!MayPass(status) || (!starts && !away)) return plan->done(status);
  const auto retry = [weak = weak_from_this(), plan] {
    if (const auto self = weak.lock()) self->TryPlan(plan);
  };
  if (clock_->Now() + kRetryDelay < plan->give_up && executor_->PostAfter(kRetryDelay, retry)) {
    return;
  }
  SetStarts(plan->server, false);
  if (starts) return plan->done(status);  // Whoever waits may ask again.
  ErrorFields fields;
  fields.server = static_cast<int>(plan->server);
  fields.address = peers_.at(plan->server).address;
  plan->done(ReasonedError(
      absl::StatusCode::kUnavailable, Reason::kServerLost,
      absl::StrCat("server ", plan->server, " does not answer: ", status.message()), fields));
}

void PeerClientImpl::SetStarts(uint32_t server, bool starts) {
  MutexLock lock(&mu_);
  const auto peer = peers_.find(server);
  if (peer != peers_.end()) peer->second.starts = starts;
}

void PeerClientImpl::Seal(uint32_t server, uint64_t job, uint32_t epoch,
                          std::function<void(absl::StatusOr<SealAnswer>)> done) {
  v1::PeerSeal message;
  message.set_job(job);
  message.set_epoch(epoch);
  const auto answer =
      std::make_shared<absl::StatusOr<SealAnswer>>(absl::InternalError("no answer"));
  auto under_way = std::make_shared<PlanUnderWay>();
  under_way->method = method::kPeerSeal;
  under_way->server = server;
  under_way->bytes = SerializeMessage(message);
  under_way->give_up = clock_->Now() + config_.create_timeout;
  under_way->replied = [this, answer](const grpc::ByteBuffer& reply) {
    v1::PeerSealed sealed;
    const absl::Status parsed =
        ParseMessage(reply, static_cast<size_t>(config_.max_message_bytes), &sealed);
    if (!parsed.ok()) {
      *answer = parsed;
      return;
    }
    SealAnswer said{sealed.version(), sealed.prepared(), sealed.init_missing()};
    if (sealed.world_max() != 0) said.world_max = sealed.world_max();
    *answer = said;
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
  const CallOptions options{method::kPeerDropJob, config_.report_after, false};
  Call(server, options, SerializeMessage(message), StatusOnly(std::move(done)));
}

void PeerClientImpl::WhichRest(uint32_t home, const std::vector<uint64_t>& jobs,
                               std::function<void(absl::StatusOr<std::vector<uint64_t>>)> done) {
  v1::PeerJobs message;
  message.mutable_jobs()->Add(jobs.begin(), jobs.end());
  const CallOptions options{method::kPeerWhichRest, config_.report_after, false};
  Call(home, options, SerializeMessage(message),
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
  const CallOptions options{method::kPeerSnapshot, kWholeState, false};
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

// --- Votes --------------------------------------------------------------------------------------

void PeerClientImpl::SendVote(uint64_t job, uint32_t epoch, uint64_t round, uint32_t to_server,
                              const Vote& vote) {
  v1::Prepare message;
  message.set_job(job);
  message.set_epoch(epoch);
  message.set_round(round);
  ballast::ToProto(vote, &message);
  auto under_way = std::make_shared<VoteUnderWay>();
  under_way->job = job;
  under_way->server = to_server;
  under_way->epoch = epoch;
  under_way->round = round;
  under_way->bytes = SerializeMessage(message);
  under_way->give_up = clock_->Now() + config_.report_after;
  {
    MutexLock lock(&mu_);
    newest_votes_[{job, to_server}] = under_way;
  }
  TryVote(std::move(under_way));
}

void PeerClientImpl::TryVote(std::shared_ptr<VoteUnderWay> vote) {
  const CallOptions options{method::kPeerVote, config_.report_after, false};
  Call(vote->server, options, vote->bytes,
       [this, vote](const absl::Status& status, const grpc::ByteBuffer& reply) {
         OnVoteAnswer(vote, status, reply);
       });
}

bool PeerClientImpl::Superseded(const std::shared_ptr<VoteUnderWay>& vote) {
  MutexLock lock(&mu_);
  const auto newest = newest_votes_.find({vote->job, vote->server});
  return newest == newest_votes_.end() || newest->second != vote;
}

void PeerClientImpl::TellAnswer(const VoteUnderWay& vote, const absl::StatusOr<Vote>& answer) {
  VoteCallback voted;
  {
    MutexLock lock(&mu_);
    voted = voted_;
  }
  if (voted) voted(vote.job, vote.epoch, vote.round, answer);
}

void PeerClientImpl::OnVoteAnswer(const std::shared_ptr<VoteUnderWay>& vote,
                                  const absl::Status& status, const grpc::ByteBuffer& reply) {
  if (status.ok()) {
    v1::VoteReply answer;
    if (!ParseMessage(reply, static_cast<size_t>(config_.max_message_bytes), &answer).ok()) return;
    if (!answer.has_vote()) return;
    const absl::StatusOr<Vote> theirs = VoteFromProto(answer.vote());
    if (theirs.ok() && theirs->server == vote->server) TellAnswer(*vote, *theirs);
    return;
  }
  if (status.code() == absl::StatusCode::kCancelled || Superseded(vote)) return;
  if (ReasonOf(status) == Reason::kStateLost) return TellAnswer(*vote, status);
  // A peer that was just started knows its jobs a little later.
  const bool not_yet = MayPass(status) || ReasonOf(status) == Reason::kUnknownJob;
  if (!not_yet) {
    BALLAST_LOG(WARN, LogField("server", vote->server), LogField("round", vote->round))
        << "vote refused: " << status;
    return;
  }
  if (MayPass(status) && clock_->Now() >= vote->give_up) {
    vote->give_up = std::chrono::nanoseconds::max();  // Said once; offered further.
    Lost(vote->server, absl::StrCat("it does not take votes: ", status.message()), true);
  }
  executor_->PostAfter(kRetryDelay, [weak = weak_from_this(), vote] {
    if (const auto self = weak.lock()) self->TryVote(vote);
  });
}

// --- Heartbeat ----------------------------------------------------------------------------------

void PeerClientImpl::Beat() {
  std::vector<uint32_t> ask;
  std::vector<uint32_t> silent;
  {
    MutexLock lock(&mu_);
    if (stopping_) return;
    for (auto& [id, peer] : peers_) {
      if (peer.reachable && clock_->Now() - peer.last_heard >= config_.report_after) {
        silent.push_back(id);
      }
      if (!peer.asking) ask.push_back(id);
    }
  }
  const std::string why = absl::StrCat("no answer for ", FormatDuration(config_.report_after));
  for (const uint32_t server : silent) Lost(server, why);
  for (const uint32_t server : ask) Ask(server);
  executor_->PostAfter(config_.heartbeat_interval, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->Beat();
  });
}

grpc::ByteBuffer PeerClientImpl::OwnHello() const {
  v1::PeerHello hello;
  *hello.mutable_protocol() = OwnProtocolRange();
  hello.set_id(config_.self);
  hello.set_incarnation(config_.incarnation);
  return SerializeMessage(hello);
}

void PeerClientImpl::Ask(uint32_t server) {
  {
    MutexLock lock(&mu_);
    peers_.at(server).asking = true;
  }
  const CallOptions options{method::kPeerHello, config_.report_after, false};
  Call(server, options, OwnHello(),
       [this, server](const absl::Status& status, const grpc::ByteBuffer& reply) {
         OnHello(server, status, reply);
       });
}

absl::Status PeerClientImpl::CheckHello(uint32_t server, const v1::PeerHello& hello) const {
  if (hello.id() != server) {
    return absl::FailedPreconditionError(absl::StrCat("server ", hello.id(), " listens there, not ",
                                                      server, "; correct the list of peers"));
  }
  return ChooseProtocol(hello.protocol(), absl::StrCat("server ", server)).status();
}

void PeerClientImpl::OnHello(uint32_t server, const absl::Status& status,
                             const grpc::ByteBuffer& reply) {
  {
    MutexLock lock(&mu_);
    peers_.at(server).asking = false;
    if (stopping_) return;
  }
  if (!status.ok()) {
    NotHeard(server, status);
    return;
  }
  v1::PeerHello hello;
  absl::Status checked =
      ParseMessage(reply, static_cast<size_t>(config_.max_message_bytes), &hello);
  if (checked.ok()) checked = CheckHello(server, hello);
  if (checked.ok()) {
    Heard(server, hello.incarnation());
  } else {
    BALLAST_LOG_EVERY(30, ERROR, LogField("server", server),
                      LogField("address", peers_.at(server).address))
        << checked;
  }
}

void PeerClientImpl::Heard(uint32_t server, uint64_t incarnation) {
  bool restarted = false;
  {
    MutexLock lock(&mu_);
    Peer& peer = peers_.at(server);
    restarted = peer.reachable && peer.incarnation != incarnation;
  }
  if (restarted) Lost(server, "it was restarted");
  bool found = false;
  {
    MutexLock lock(&mu_);
    Peer& peer = peers_.at(server);
    found = !std::exchange(peer.reachable, true);
    peer.incarnation = incarnation;
    peer.last_heard = clock_->Now();
    peer.asked_twice = false;
  }
  if (found) BALLAST_LOG(INFO, LogField("server", server)) << "peer is reachable";
}

void PeerClientImpl::NotHeard(uint32_t server, const absl::Status& status) {
  bool again = false;
  {
    MutexLock lock(&mu_);
    Peer& peer = peers_.at(server);
    // Silence is judged by Beat; a connection that broke is tried once more at once.
    if (!peer.reachable || status.code() != absl::StatusCode::kUnavailable) return;
    again = !std::exchange(peer.asked_twice, true);
  }
  if (again) {
    Ask(server);
  } else {
    Lost(server, absl::StrCat("its connection broke: ", status.message()));
  }
}

void PeerClientImpl::Lost(uint32_t server, const std::string& why, bool always) {
  LostCallback lost;
  {
    MutexLock lock(&mu_);
    Peer& peer = peers_.at(server);
    peer.asked_twice = false;
    const bool was_reachable = std::exchange(peer.reachable, false);
    if (stopping_ || (!was_reachable && !always)) return;
    lost = lost_;
  }
  BALLAST_LOG(WARN, LogField("server", server)) << "peer lost: " << why;
  if (lost) lost(server, why);
}

}  // namespace

std::shared_ptr<PeerClient> PeerClient::Create(const PeerLinkConfig& config, Executor* executor,
                                               const Clock* clock, grpc::CompletionQueue* queue) {
  return std::make_shared<PeerClientImpl>(config, executor, clock, queue);
}

}  // namespace ballast::server
