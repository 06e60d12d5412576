// Calls between servers: votes arrive, also late; a server that is gone is noticed, once.
#include "server/peer/peer_client.h"
#include "common/threads/thread_executor.h"

#include <algorithm>
#include <atomic>
#include <future>

#include "common/base/reason.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/convert/job_convert.h"
#include "proto/convert/methods.h"
#include "server/peer/peer_caller.h"
#include "server/peer/peer_heartbeat.h"
#include "server/rpc/generic_server.h"
#include "server/rpc/grpc_peer_transport.h"
#include "server/service/peer_service.h"
#include "server/stream/unary_call.h"
#include "tests/server/service/fakes.h"

namespace ballast::server {
namespace {

using testing::HasSubstr;

JobPlan Plan() {
  JobPlan plan;
  plan.job = 77;
  plan.spec.name = "gpt";
  plan.spec.tensors = {{"a", {3}, DType::kF32, 0, {}}};
  plan.epoch.members = {{0, 100}};
  plan.epoch.contributors = {{{0}, 1}};
  plan.servers = {0, 1};
  plan.owner = {1};
  return plan;
}

std::unique_ptr<PeerTransport> OverGrpc() {
  return std::make_unique<GrpcPeerTransport>(GrpcPeerOptions());
}

// A peer: its services and the directory they call.
struct PeerProcess {
  explicit PeerProcess(uint32_t id, const std::string& address = "127.0.0.1:0",
                       uint64_t incarnation = 1)
      : directory(std::make_shared<FakeDirectory>()) {
    AddPeerMethods(&server, &holder, {id, incarnation});
    GenericServerOptions options;
    options.address = address;
    EXPECT_TRUE(server.Start(options).ok());
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", server.port()); }

  std::shared_ptr<FakeDirectory> directory;
  DirectoryHolder holder{StillStarting({1, "127.0.0.1:1"}, "waits")};
  GenericServer server;
};

class PeerLinkTest : public testing::Test {
 protected:
  ~PeerLinkTest() override {
    if (client_ != nullptr) client_->Stop();
    executor_.Shutdown();
  }
  void Connect(const std::string& address) {
    PeerLinkConfig config;
    config.self = 0;
    config.servers = {{0, "127.0.0.1:1"}, {1, address}};
    config.heartbeat_interval = std::chrono::milliseconds(20);
    config.create_timeout = create_timeout_;
    client_ = PeerClient::Create(config, &executor_, RealClock::Get(), OverGrpc());
    client_->Start(
        [this](uint32_t server, const std::string& why) {
          MutexLock lock(&mu_);
          lost_.push_back(absl::StrCat(server, ": ", why));
          changed_.NotifyAll();
        },
        [this](uint64_t job, uint32_t epoch, uint64_t round, const absl::StatusOr<Vote>& vote) {
          MutexLock lock(&mu_);
          answers_.push_back(absl::StrCat(job, "/", epoch, "/", round, " ",
                                          vote.ok() ? absl::StrCat("from ", vote->server)
                                                    : ReasonName(ReasonOf(vote.status()))));
          changed_.NotifyAll();
        });
  }
  bool WaitUntilReachable() {
    const auto end = std::chrono::steady_clock::now() + kTestDeadline;
    while (std::chrono::steady_clock::now() < end) {
      if (client_->Peers()[0].reachable) return true;
      std::this_thread::yield();
    }
    return false;
  }
  std::string WaitForFirst(const std::vector<std::string>& of) {
    MutexLock lock(&mu_);
    const auto end = std::chrono::steady_clock::now() + kTestDeadline;
    while (of.empty() && std::chrono::steady_clock::now() < end) {
      changed_.WaitFor(&mu_, std::chrono::milliseconds(100));
    }
    return of.empty() ? "nothing" : of.front();
  }
  std::string WaitForLost() { return WaitForFirst(lost_); }
  std::string WaitForAnswer() { return WaitForFirst(answers_); }
  absl::Status Create(const JobPlan& plan) {
    absl::Status result = absl::UnknownError("not called");
    bool called = false;
    client_->CreateJob(1, plan, [&](const absl::Status& status) {
      MutexLock lock(&mu_);
      result = status;
      called = true;
      changed_.NotifyAll();
    });
    MutexLock lock(&mu_);
    while (!called) changed_.Wait(&mu_);
    return result;
  }

  ThreadExecutor executor_{"test", 2};
  std::chrono::nanoseconds create_timeout_ = std::chrono::milliseconds(200);
  std::shared_ptr<PeerClient> client_;
  Mutex mu_;
  CondVar changed_;
  std::vector<std::string> lost_;
  std::vector<std::string> answers_;
};

TEST_F(PeerLinkTest, AVoteArrivesAtTheEngineOfItsJob) {
  PeerProcess peer(1);
  peer.holder.Set(peer.directory);
  Connect(peer.address());
  Vote vote;
  vote.server = 0;
  vote.norms = {{2, 0.5}};
  client_->SendVote(77, 1, 6, 1, vote);
  ASSERT_TRUE(
      peer.directory->engine->WaitUntil([](FakeEngine& e) { return e.votes_.size() == 1; }));
  EXPECT_EQ(peer.directory->engine->votes_[0].first, 6u);
  EXPECT_EQ(peer.directory->engine->votes_[0].second.norms, vote.norms);
}

TEST_F(PeerLinkTest, TheAnswerToAVoteIsThePeersOwn) {
  PeerProcess peer(1);
  Vote own;
  own.server = 1;
  peer.directory->engine->vote_answer = own;
  peer.holder.Set(peer.directory);
  Connect(peer.address());
  client_->SendVote(77, 1, 6, 1, Vote());
  EXPECT_EQ(WaitForAnswer(), "77/1/6 from 1");
}

TEST_F(PeerLinkTest, TheAnswerToAVoteMayBeThatTheDiskHasLostLaterOnes) {
  PeerProcess peer(1);
  peer.directory->engine->vote_answer =
      ReasonedError(absl::StatusCode::kDataLoss, Reason::kStateLost, "its disk has lost them");
  peer.holder.Set(peer.directory);
  Connect(peer.address());
  client_->SendVote(77, 1, 6, 1, Vote());
  EXPECT_EQ(WaitForAnswer(), "77/1/6 STATE_LOST");
}

TEST_F(PeerLinkTest, AVoteIsRepeatedUntilThePeerTakesIt) {
  PeerProcess peer(1);  // Answers UNAVAILABLE: it has no directory yet.
  Connect(peer.address());
  ASSERT_TRUE(WaitUntilReachable());
  client_->SendVote(77, 1, 6, 1, Vote());
  peer.holder.Set(peer.directory);
  EXPECT_TRUE(
      peer.directory->engine->WaitUntil([](FakeEngine& e) { return e.votes_.size() == 1; }));
}

// A vote that is under way or waits for its next attempt is offered once more at most.
TEST_F(PeerLinkTest, AVoteIsNotRepeatedOnceANewerOneIsSent) {
  PeerProcess peer(1);
  peer.directory->engine->vote_answer = absl::UnavailableError("later");
  peer.holder.Set(peer.directory);
  Connect(peer.address());
  const auto count = [](const FakeEngine& engine, uint64_t round) {
    return std::count_if(engine.votes_.begin(), engine.votes_.end(),
                         [round](const auto& vote) { return vote.first == round; });
  };
  client_->SendVote(77, 1, 6, 1, Vote());
  ASSERT_TRUE(peer.directory->engine->WaitUntil([&](FakeEngine& e) { return count(e, 6) >= 1; }));
  client_->SendVote(77, 1, 7, 1, Vote());
  ptrdiff_t before = 0;
  ASSERT_TRUE(peer.directory->engine->WaitUntil([&](FakeEngine& e) {
    before = count(e, 6);
    return true;
  }));
  ptrdiff_t after = 0;
  ASSERT_TRUE(peer.directory->engine->WaitUntil([&](FakeEngine& e) {
    after = count(e, 6);
    return count(e, 7) >= 5;
  }));
  EXPECT_LE(after, before + 1);
}

TEST_F(PeerLinkTest, AnAnswerWithTheVoteOfAThirdServerIsDropped) {
  PeerProcess peer(1);
  Vote own;
  own.server = 1;
  peer.directory->engine->vote_answer = own;
  own.server = 2;
  peer.directory->engine->vote_answers[6] = own;
  peer.holder.Set(peer.directory);
  Connect(peer.address());
  client_->SendVote(77, 1, 6, 1, Vote());
  ASSERT_TRUE(
      peer.directory->engine->WaitUntil([](FakeEngine& e) { return e.votes_.size() == 1; }));
  client_->SendVote(77, 1, 7, 1, Vote());
  EXPECT_EQ(WaitForAnswer(), "77/1/7 from 1");
}

TEST_F(PeerLinkTest, AVoteForAPeerThatStartsLaterIsDelivered) {
  std::string address;
  {
    PeerProcess early(1);
    address = early.address();
  }
  Connect(address);
  client_->SendVote(77, 1, 6, 1, Vote());
  PeerProcess peer(1, address);
  peer.holder.Set(peer.directory);
  EXPECT_TRUE(
      peer.directory->engine->WaitUntil([](FakeEngine& e) { return e.votes_.size() == 1; }));
}

TEST_F(PeerLinkTest, APeerThatEndsIsLostOnce) {
  auto peer = std::make_unique<PeerProcess>(1);
  Connect(peer->address());
  ASSERT_TRUE(WaitUntilReachable());
  peer.reset();
  EXPECT_THAT(WaitForLost(), HasSubstr("1: its connection broke"));
  client_->Stop();
  EXPECT_EQ(lost_.size(), 1u);
  EXPECT_FALSE(client_->Peers()[0].reachable);
}

TEST_F(PeerLinkTest, APeerThatWasRestartedIsLostAndReachableAgain) {
  auto peer = std::make_unique<PeerProcess>(1);
  const std::string address = peer->address();
  Connect(address);
  ASSERT_TRUE(WaitUntilReachable());
  peer.reset();
  PeerProcess again(1, address, 2);
  EXPECT_THAT(WaitForLost(), HasSubstr("1: "));
  EXPECT_TRUE(WaitUntilReachable());
}

TEST_F(PeerLinkTest, APeerOfAnotherNumberIsNotReachable) {
  PeerProcess wrong(5);
  Connect(wrong.address());
  EXPECT_FALSE(Create(Plan()).ok());
  EXPECT_FALSE(client_->Peers()[0].reachable);
}

TEST_F(PeerLinkTest, AJobIsCreatedAtThePeerAndItsRefusalComesBack) {
  PeerProcess peer(1);
  peer.holder.Set(peer.directory);
  Connect(peer.address());
  EXPECT_TRUE(Create(Plan()).ok());
  EXPECT_EQ(peer.directory->plans_[0].spec.name, "gpt");
  peer.directory->create_answer = ReasonedError(absl::StatusCode::kResourceExhausted,
                                                Reason::kOverBudget, "needs 5 of 3 bytes");
  const absl::Status status = Create(Plan());
  EXPECT_EQ(ReasonOf(status), Reason::kOverBudget);
  EXPECT_THAT(status.message(), HasSubstr("5 of 3"));
}

TEST_F(PeerLinkTest, ASealSaysHowManyTrainersAreWantedAndBringsWhatThePeerGrants) {
  PeerProcess peer(1);
  peer.holder.Set(peer.directory);
  peer.directory->seal_answer.world_max = 3;
  peer.directory->seal_answer.refusal = ReasonedError(
      absl::StatusCode::kResourceExhausted, Reason::kOverQuota, "uses 3 of 3", {.server = 1});
  Connect(peer.address());
  std::promise<absl::StatusOr<SealAnswer>> promise;
  client_->Seal(1, {.job = 77, .epoch = 2, .world = 4},
                [&](const auto& sealed) { promise.set_value(sealed); });
  const absl::StatusOr<SealAnswer> sealed = promise.get_future().get();
  ASSERT_TRUE(sealed.ok()) << sealed.status();
  EXPECT_EQ(peer.directory->sealed.job, 77u);
  EXPECT_EQ(peer.directory->sealed.epoch, 2u);
  EXPECT_EQ(peer.directory->sealed.world, 4u);
  EXPECT_EQ(sealed->world_max, 3u);
  EXPECT_EQ(ReasonOf(sealed->refusal), Reason::kOverQuota);
}

TEST_F(PeerLinkTest, ThePeerSaysWhichJobsRest) {
  PeerProcess peer(1);
  Connect(peer.address());
  const auto ask = [&] {
    std::promise<absl::StatusOr<std::vector<uint64_t>>> promise;
    client_->WhichRest(1, {4, 5, 6}, [&](const auto& rest) { promise.set_value(rest); });
    return promise.get_future().get();
  };
  EXPECT_EQ(ReasonOf(ask().status()), Reason::kRecovering) << "it starts";
  peer.holder.Set(peer.directory);
  const auto rest = ask();
  ASSERT_TRUE(rest.ok()) << rest.status();
  EXPECT_EQ(*rest, (std::vector<uint64_t>{4, 6}));
}

// Its connection has just been refused, and is not tried again at once.
TEST_F(PeerLinkTest, AnOrderWaitsForTheConnectionToAPeerThatWasStartedAgain) {
  auto peer = std::make_unique<PeerProcess>(1);
  const std::string address = peer->address();
  Connect(address);
  ASSERT_TRUE(WaitUntilReachable());
  peer.reset();
  ASSERT_NE(WaitForLost(), "nothing");
  std::promise<absl::Status> answer;
  client_->ImportJob(1, {Plan(), "export", true},
                     [&](const absl::Status& status) { answer.set_value(status); });
  peer = std::make_unique<PeerProcess>(1, address);
  peer->holder.Set(peer->directory);
  const absl::Status status = answer.get_future().get();
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(PeerLinkTest, ACreationWaitsForAPeerThatIsStillStarting) {
  create_timeout_ = kTestDeadline;
  PeerProcess peer(1);
  Connect(peer.address());
  executor_.PostAfter(std::chrono::milliseconds(60), [&] { peer.holder.Set(peer.directory); });
  EXPECT_TRUE(Create(Plan()).ok());
}

TEST_F(PeerLinkTest, APeerThatIsStillStartingIsNotReachableForThoseWhoWait) {
  create_timeout_ = kTestDeadline;
  PeerProcess peer(1);
  Connect(peer.address());
  ASSERT_TRUE(WaitUntilReachable());
  std::promise<absl::Status> created;
  client_->CreateJob(1, Plan(), [&](const absl::Status& status) { created.set_value(status); });
  const auto end = std::chrono::steady_clock::now() + kTestDeadline;
  while (client_->Peers()[0].reachable && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
  }
  EXPECT_FALSE(client_->Peers()[0].reachable);
  peer.holder.Set(peer.directory);
  EXPECT_TRUE(created.get_future().get().ok());
  EXPECT_TRUE(client_->Peers()[0].reachable);
}

TEST_F(PeerLinkTest, APeerThatStartsForTooLongHasAnswered) {
  PeerProcess peer(1);
  Connect(peer.address());
  const absl::Status status = Create(Plan());
  EXPECT_EQ(ReasonOf(status), Reason::kRecovering);
  EXPECT_EQ(FieldsOf(status).address, "127.0.0.1:1");
  EXPECT_TRUE(WaitUntilReachable());
}

TEST_F(PeerLinkTest, APeerThatDoesNotAnswerACreationIsNamed) {
  Connect("127.0.0.1:1");
  const absl::Status status = Create(Plan());
  EXPECT_EQ(ReasonOf(status), Reason::kServerLost);
  EXPECT_EQ(FieldsOf(status).server, 1);
}

TEST_F(PeerLinkTest, CallsUnderWayEndWhenTheClientStops) {
  Connect("127.0.0.1:1");
  client_->SendVote(77, 1, 6, 1, Vote());
  client_->Stop();
  EXPECT_EQ(Create(Plan()).code(), absl::StatusCode::kCancelled);
}

// --- Numbers ------------------------------------------------------------------------------------

// Server 1, of a release without numbers: it counts Hellos, and refuses orders.
struct HelloCounter {
  HelloCounter() {
    const auto answer = UnaryCall::Factory([](auto call, const Payload&) {
      v1::PeerHello hello;
      *hello.mutable_protocol() = OwnProtocolRange();
      hello.set_id(1);
      call->Reply(hello);
    });
    server.AddMethod(method::kPeerHello, [this, answer](std::shared_ptr<MessageStream> call) {
      // As gRPC's client has it after a reset for memory; the first answer counts.
      if (++hellos > answered_hellos) static_cast<GenericCall&>(*call).EndWith(reset);
      return answer(call);
    });
    server.AddMethod(method::kPeerDropJob, UnaryCall::Factory([](auto call, const Payload&) {
                       call->Fail(absl::UnauthenticatedError("the number is an old one"));
                     }));
    GenericServerOptions options;
    options.address = "127.0.0.1:0";
    options.pollers = 1;  // Calls come in the order in which they were sent.
    EXPECT_TRUE(server.Start(options).ok());
    config.servers = {{0, "127.0.0.1:1"}, {1, absl::StrCat("127.0.0.1:", server.port())}};
    config.report_after = kTestDeadline;
  }

  const grpc::Status reset{grpc::StatusCode::RESOURCE_EXHAUSTED, "RST_STREAM with error code 11"};
  std::atomic<int> hellos{0};
  std::atomic<int> answered_hellos{1000};  // those after them break off
  GenericServer server;
  PeerLinkConfig config;  // of server 0
};

// Strangers' Hellos may cause Hellos: not one for one.
TEST(PeerHeartbeatTest, AskNowSaysHelloOnceInTheDelayBetweenAttempts) {
  HelloCounter peer;
  FakeClock clock;
  PeerCaller caller(peer.config, OverGrpc());
  PeerHeartbeat heartbeat(peer.config, &caller, &clock, [](auto, auto) { return true; });
  const auto say_hello = [&] {
    std::promise<void> said;
    caller.SayHello(1, true, [&](const auto&) { said.set_value(); });
    said.get_future().wait();
  };
  const auto answered = [&](int count) {
    const auto end = std::chrono::steady_clock::now() + kTestDeadline;
    while (peer.hellos < count || !heartbeat.Peers()[0].reachable) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::yield();
    }
    return peer.hellos == count;
  };
  say_hello();  // There is a connection.
  heartbeat.AskNow(1);
  ASSERT_TRUE(answered(2));
  heartbeat.AskNow(1);
  say_hello();
  EXPECT_EQ(peer.hellos, 3);
  clock.Advance(kPeerRetryDelay);
  heartbeat.AskNow(1);
  EXPECT_TRUE(answered(4));
  caller.Stop();
}

// A peer at its bound of memory lives: its silence is judged by the interval, not by the calls that
// it breaks off.
TEST(PeerHeartbeatTest, APeerThatBreaksHellosOffForMemoryStaysReachable) {
  HelloCounter peer;
  peer.answered_hellos = 1;
  FakeClock clock;
  PeerCaller caller(peer.config, OverGrpc());
  PeerHeartbeat heartbeat(peer.config, &caller, &clock, [](auto, auto) { return true; });
  std::atomic<int> lost{0};
  heartbeat.Start([&](uint32_t, const std::string&) { ++lost; });
  const auto end = std::chrono::steady_clock::now() + kTestDeadline;
  const auto pending = [&] { return std::chrono::steady_clock::now() < end; };
  while (!heartbeat.Peers()[0].reachable && pending()) std::this_thread::yield();
  // The fifth is sent by a thread that has heard of the third, so of two that broke in turn.
  while (peer.hellos < 5 && pending()) {
    clock.Advance(kPeerRetryDelay);
    heartbeat.AskNow(1);
  }
  EXPECT_GE(peer.hellos, 5);
  EXPECT_EQ(lost, 0);
  EXPECT_TRUE(heartbeat.Peers()[0].reachable);
  caller.Stop();
}

TEST(PeerCallerTest, ARefusedNumberIsAServerThatStartsAndSaysWhatThePeerSaid) {
  HelloCounter peer;
  PeerNumbers numbers(std::string(16, 's'));
  numbers.SetServers({0, 1});
  peer.config.numbers = &numbers;
  PeerCaller caller(peer.config, OverGrpc());
  std::promise<absl::Status> said;
  caller.Call(1, {method::kPeerDropJob, kTestDeadline, true, ""}, MessageBytes(v1::PeerDropJob()),
              [&](const auto& answer) { said.set_value(answer.status()); });
  const absl::Status status = said.get_future().get();
  EXPECT_TRUE(IsStillStarting(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("it says: the number is an old one"));
  caller.Stop();
}

// One of two servers without security: it takes calls, and makes them.
class NumberedServer {
 public:
  NumberedServer(uint32_t id, uint64_t incarnation, const std::string& address = "127.0.0.1:0")
      : id_(id), incarnation_(incarnation) {
    gate_.SetServers(id, {0, 1});
    AddPeerMethods(&server_, &holder_, {id, incarnation, &gate_});
    holder_.Set(directory_);
    GenericServerOptions options;
    options.address = address;
    options.gate = &gate_;
    EXPECT_TRUE(server_.Start(options).ok());
  }
  ~NumberedServer() {
    if (client_ != nullptr) client_->Stop();
    executor_.Shutdown();
  }
  void Meet(const std::string& other, bool with_numbers = true) {
    PeerLinkConfig config;
    config.self = id_;
    config.incarnation = incarnation_;
    config.servers = {{1 - id_, other}};
    config.heartbeat_interval = std::chrono::milliseconds(20);
    config.create_timeout = kTestDeadline;
    if (with_numbers) config.numbers = gate_.numbers();
    client_ = PeerClient::Create(config, &executor_, RealClock::Get(), OverGrpc());
    client_->Start([](uint32_t, const std::string&) {}, [](auto...) {});
  }
  // Whether the other server has answered, so that a call without a number is a stranger's.
  bool Hears() {
    const auto end = std::chrono::steady_clock::now() + kTestDeadline;
    while (!client_->Peers()[0].reachable && std::chrono::steady_clock::now() < end) {
      std::this_thread::yield();
    }
    return client_->Peers()[0].reachable;
  }
  absl::Status Order() {
    std::promise<absl::Status> done;
    client_->CreateJob(1 - id_, Plan(),
                       [&](const absl::Status& status) { done.set_value(status); });
    return done.get_future().get();
  }
  void CastVote(uint64_t round) {
    Vote vote;
    vote.server = id_;
    client_->SendVote(77, 1, round, 1 - id_, vote);
  }
  bool HasVoteOf(uint64_t round) {
    return directory_->engine->WaitUntil([round](FakeEngine& engine) {
      return !engine.votes_.empty() && engine.votes_.back().first == round;
    });
  }
  size_t orders() {
    size_t count = 0;
    directory_->WaitUntil([&](FakeDirectory& directory) {
      count = directory.plans_.size();
      return true;
    });
    return count;
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", server_.port()); }

 private:
  const uint32_t id_;
  const uint64_t incarnation_;
  Gate gate_{{}, nullptr};
  std::shared_ptr<FakeDirectory> directory_ = std::make_shared<FakeDirectory>();
  DirectoryHolder holder_{absl::UnavailableError("waits")};
  GenericServer server_;
  ThreadExecutor executor_{"test", 1};
  std::shared_ptr<PeerClient> client_;
};

TEST(PeerNumbersTest, OrdersAndVotesPassAndThoseOfAStrangerDoNot) {
  NumberedServer home(0, 1);
  NumberedServer other(1, 2);
  home.Meet(other.address());
  other.Meet(home.address());
  EXPECT_EQ(home.Order(), absl::OkStatus());
  home.CastVote(6);
  EXPECT_TRUE(other.HasVoteOf(6));
  other.CastVote(7);
  EXPECT_TRUE(home.HasVoteOf(7));
  ASSERT_TRUE(other.Hears());
  NumberedServer stranger(0, 3);
  stranger.Meet(other.address(), /*with_numbers=*/false);
  EXPECT_EQ(ReasonOf(stranger.Order()), Reason::kNoIdentity);
  EXPECT_EQ(other.orders(), 1u);
}

TEST(PeerNumbersTest, AStrangerThatSaysHelloInAServersNameIsNotBelieved) {
  NumberedServer home(0, 1);
  NumberedServer other(1, 2);
  NumberedServer stranger(1, 3);
  stranger.Meet(home.address());
  ASSERT_TRUE(stranger.Hears());
  home.Meet(other.address());
  other.Meet(home.address());
  EXPECT_EQ(home.Order(), absl::OkStatus());
  EXPECT_EQ(other.orders(), 1u);
}

TEST(PeerNumbersTest, AServerThatIsStartedAgainIsKnownAgain) {
  auto home = std::make_unique<NumberedServer>(0, 1);
  auto other = std::make_unique<NumberedServer>(1, 2);
  const std::string at_home = home->address();
  const std::string at_other = other->address();
  home->Meet(at_other);
  other->Meet(at_home);
  EXPECT_EQ(home->Order(), absl::OkStatus());
  other.reset();
  other = std::make_unique<NumberedServer>(1, 3, at_other);
  home->CastVote(8);
  other->Meet(at_home);
  EXPECT_EQ(home->Order(), absl::OkStatus());
  EXPECT_TRUE(other->HasVoteOf(8));
  home.reset();
  other->CastVote(9);
  home = std::make_unique<NumberedServer>(0, 4, at_home);
  home->Meet(at_other);
  EXPECT_EQ(home->Order(), absl::OkStatus());
  EXPECT_TRUE(home->HasVoteOf(9));
}

}  // namespace
}  // namespace ballast::server
