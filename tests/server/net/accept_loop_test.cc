// AcceptLoop over sockets that are played: each Wait hands out one turn of a script. The script's
// end is the barrier that the test waits for.
#include "server/net/accept_loop.h"

#include <gtest/gtest.h>

#include <deque>
#include <future>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "common/base/sync.h"
#include "common/faults/failpoint.h"
#include "common/metrics/declarations.h"
#include "common/threads/thread_executor.h"
#include "server/net/first_bytes.h"

namespace ballast::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// The results of one call of Wait.
struct Turn {
  std::vector<Incoming> arrive;  // to be accepted
  std::vector<int> speak;
  std::function<void()> before;  // on the loop's thread
};

class PlayedSockets : public Sockets {
 public:
  Happened Wait(std::chrono::nanoseconds, bool listening) override {
    MutexLock lock(&mu_);
    if (turns_.empty()) {
      if (!std::exchange(done_, true)) finished_.set_value();
      while (!woken_) wake_.Wait(&mu_);
      return {};
    }
    const Turn turn = std::move(turns_.front());
    turns_.pop_front();
    if (turn.before) turn.before();
    arrived_.insert(arrived_.end(), turn.arrive.begin(), turn.arrive.end());
    listened.push_back(listening);
    return {listening && !arrived_.empty(), turn.speak};
  }
  void Wake() override {
    MutexLock lock(&mu_);
    woken_ = true;
    wake_.NotifyAll();
  }
  Incoming Accept() override {
    if (arrived_.empty()) return {};
    if (arrived_.front().result == Accepted::kNoDescriptor) return arrived_.front();
    const Incoming next = arrived_.front();
    arrived_.pop_front();
    identities[next.fd] = ++last_identity_;
    return next;
  }
  bool Refuse() override {
    ++refuse_calls;
    if (!reserve) return false;
    arrived_.pop_front();
    return true;
  }
  void Watch(int fd) override { watched.insert(fd); }
  void Unwatch(int fd) override { watched.erase(fd); }
  std::string Peek(int fd, size_t, bool* ended) override {
    *ended = hung_up.count(fd) > 0;
    return said[fd];
  }
  uint64_t Identity(int fd) override { return identities[fd]; }
  void Close(int fd) override {
    closed.push_back(fd);
    watched.erase(fd);
    identities[fd] = 0;
  }

  void Add(Turn turn) { turns_.push_back(std::move(turn)); }
  void WaitUntilPlayed() { finished_.get_future().wait(); }

  // Of the loop's thread until it has stopped or all is played.
  std::map<int, std::string> said;
  std::set<int> hung_up;
  std::map<int, uint64_t> identities;
  std::set<int> watched;
  std::vector<int> closed;
  std::vector<bool> listened;
  bool reserve = true;
  int refuse_calls = 0;

 private:
  Mutex mu_;
  CondVar wake_;
  std::deque<Turn> turns_;
  std::deque<Incoming> arrived_;
  std::promise<void> finished_;
  bool done_ = false;
  bool woken_ = false;
  uint64_t last_identity_ = 0;
};

Incoming From(int fd, const std::string& address) { return {Accepted::kConnection, fd, address}; }

class AcceptLoopTest : public testing::Test {
 protected:
  AcceptLoopTest() { DeclareMetrics(&registry_); }
  ~AcceptLoopTest() override { Failpoints::Reset(); }

  // Plays the script, and stops.
  void Play(AcceptOptions options = {}) {
    AcceptLoop loop(options, &sockets_, &clock_, &executor_, &registry_, [this](int fd) {
      served_.push_back(fd);
      if (on_serve_) on_serve_(fd);
    });
    loop_ = &loop;
    loop.Start();
    sockets_.WaitUntilPlayed();
    loop.Stop();
    for (size_t i = 0; i < kRefusalCount; ++i) {
      refused_[static_cast<ConnectionRefusal>(i)] =
          loop.refusals().counted(static_cast<ConnectionRefusal>(i));
    }
    lines_ = loop.refusals().lines();
    open_ = loop.open();
    accepted_ = loop.accepted();
  }
  void Preface(int fd) { sockets_.said[fd] = std::string(kHttp2Preface); }

  PlayedSockets sockets_;
  FakeClock clock_{seconds(100)};
  MetricRegistry registry_;
  ThreadExecutor executor_{"accept", 1};
  std::vector<int> served_;
  AcceptLoop* loop_ = nullptr;  // while it plays
  std::function<void(int fd)> on_serve_;
  std::map<ConnectionRefusal, uint64_t> refused_;
  uint64_t lines_ = 0;
  size_t open_ = 0;
  uint64_t accepted_ = 0;
};

TEST_F(AcceptLoopTest, ServesAConnectionOnceItHasSpokenAndNoLongerWatchesIt) {
  sockets_.Add({.arrive = {From(10, "a")}});
  sockets_.Add({.speak = {10}, .before = [this] { sockets_.said[10] = "PRI"; }});
  sockets_.Add({.speak = {10}, .before = [this] { Preface(10); }});
  sockets_.Add({.speak = {10}});  // A late event of a connection that is gRPC's.
  Play();
  EXPECT_EQ(served_, std::vector<int>{10});
  EXPECT_TRUE(sockets_.watched.empty());
  EXPECT_TRUE(sockets_.closed.empty());
  EXPECT_EQ(accepted_, 1u);
  EXPECT_EQ(open_, 1u);
}

TEST_F(AcceptLoopTest, WithoutADescriptorItRefusesAndServesLaterConnections) {
  Preface(10);
  const Incoming none{Accepted::kNoDescriptor, -1, ""};
  sockets_.Add({.arrive = {none, none, none}});
  sockets_.Add({.arrive = {From(10, "a")}});
  Play();
  EXPECT_EQ(refused_[ConnectionRefusal::kDescriptors], 3u);
  EXPECT_EQ(lines_, 1u);
  EXPECT_EQ(served_, std::vector<int>{10});
}

TEST_F(AcceptLoopTest, RecoversAfterRunningOutOfDescriptors) {
  Preface(10);
  const Incoming none{Accepted::kNoDescriptor, -1, ""};
  sockets_.reserve = false;
  sockets_.Add({.arrive = {none}});
  sockets_.Add({});  // Rests: a port that is ready would wake the loop again and again.
  sockets_.Add({.before = [this] {
    clock_.Advance(milliseconds(200));
    sockets_.reserve = true;
  }});
  sockets_.Add({.arrive = {From(10, "a")}});
  Play();
  EXPECT_EQ(sockets_.listened, (std::vector<bool>{true, false, false, true}));
  EXPECT_EQ(sockets_.refuse_calls, 2);
  EXPECT_EQ(served_, std::vector<int>{10});
}

TEST_F(AcceptLoopTest, AConnectionThatIsCutIsCountedAndItsAddressWaits) {
  for (const int fd : {10, 11, 12}) Preface(fd);
  on_serve_ = [this](int fd) {
    if (fd != 10) return;
    loop_->Cut(10, sockets_.identities[10], ConnectionRefusal::kResets);
    // Of a connection that had the descriptor before.
    loop_->Cut(10, sockets_.identities[10] + 100, ConnectionRefusal::kResets);
  };
  sockets_.Add({.arrive = {From(10, "a")}});
  sockets_.Add({.arrive = {From(11, "a"), From(12, "b")}});
  Play();
  EXPECT_EQ(refused_[ConnectionRefusal::kResets], 1u);
  EXPECT_EQ(refused_[ConnectionRefusal::kRate], 1u);
  EXPECT_EQ(served_, (std::vector<int>{10, 12}));
}

TEST_F(AcceptLoopTest, AConnectionThatIsCutAndClosedAtOnceIsCountedOnce) {
  for (const int fd : {10, 11}) Preface(fd);
  on_serve_ = [this](int fd) {
    const uint64_t identity = sockets_.identities[fd];
    for (int i = 0; i < 2; ++i) loop_->Cut(fd, identity, ConnectionRefusal::kHeaders);
    sockets_.identities[fd] = 0;
    clock_.Advance(seconds(2));
  };
  sockets_.Add({.arrive = {From(10, "a")}});
  sockets_.Add({.arrive = {From(11, "b")}});
  Play();
  EXPECT_EQ(refused_[ConnectionRefusal::kHeaders], 2u);
}

TEST_F(AcceptLoopTest, ADescriptorOfTheFilesShareIsClosedAtOnce) {
  Preface(70);
  Preface(71);
  sockets_.Add({.arrive = {From(70, "a"), From(71, "a")}});
  AcceptOptions options;
  options.descriptor_end = 71;
  Play(options);
  EXPECT_EQ(served_, std::vector<int>{70});
  EXPECT_EQ(sockets_.closed, std::vector<int>{71});
  EXPECT_EQ(refused_[ConnectionRefusal::kDescriptors], 1u);
}

TEST_F(AcceptLoopTest, SilenceGarbageAndHangingUpAreClosedEachByItsReason) {
  sockets_.said[11] = "GET / HTTP/1.1";
  sockets_.said[12] = "\x7f";
  sockets_.hung_up.insert(13);
  sockets_.said[14] = "PRI *";
  sockets_.Add(
      {.arrive = {From(10, "a"), From(11, "a"), From(12, "a"), From(13, "a"), From(14, "a")}});
  sockets_.Add({.before = [this] { clock_.Advance(seconds(4)); }});
  sockets_.Add({.before = [this] {
    EXPECT_EQ(sockets_.closed, (std::vector<int>{11, 12, 13}));
    clock_.Advance(seconds(2));
  }});
  Play();
  EXPECT_EQ(sockets_.closed, (std::vector<int>{11, 12, 13, 10, 14}));
  EXPECT_EQ(refused_[ConnectionRefusal::kSilent], 2u);
  EXPECT_EQ(refused_[ConnectionRefusal::kHttp1], 1u);
  EXPECT_EQ(refused_[ConnectionRefusal::kGarbage], 1u);
  EXPECT_EQ(refused_[ConnectionRefusal::kLeft], 1u);
  EXPECT_EQ(open_, 0u);
  EXPECT_TRUE(served_.empty());
}

TEST_F(AcceptLoopTest, APlaceIsFreeAgainOnceGrpcHasClosedItsConnection) {
  for (const int fd : {10, 11, 12}) Preface(fd);
  AcceptOptions options;
  options.limits.per_address = 1;
  sockets_.Add({.arrive = {From(10, "a")}});
  sockets_.Add({.arrive = {From(11, "a")}});  // Too many.
  sockets_.Add({.arrive = {From(12, "a")}, .before = [this] {
                  sockets_.identities[10] = 0;
                  clock_.Advance(milliseconds(100));
                }});
  Play(options);
  EXPECT_EQ(served_, (std::vector<int>{10, 12}));
  EXPECT_EQ(refused_[ConnectionRefusal::kAddress], 1u);
  EXPECT_EQ(open_, 1u);
}

TEST_F(AcceptLoopTest, ADescriptorThatComesAgainIsANewConnection) {
  Preface(10);
  sockets_.Add({.arrive = {From(10, "a")}});
  sockets_.Add({.arrive = {From(10, "b")}});  // gRPC has closed the first; no sweep has seen it.
  Play();
  EXPECT_EQ(served_, (std::vector<int>{10, 10}));
  EXPECT_EQ(open_, 1u);
}

TEST_F(AcceptLoopTest, StopClosesSilentConnectionsAndKeepsServedOnes) {
  Preface(10);
  sockets_.Add({.arrive = {From(10, "a"), From(11, "a")}});
  Play();
  EXPECT_EQ(sockets_.closed, std::vector<int>{11});
}

TEST_F(AcceptLoopTest, AFloodIsOneLineAMinuteForEachReason) {
  for (int fd = 10; fd < 510; ++fd) sockets_.said[fd] = "\x7f";
  Turn flood;
  for (int fd = 10; fd < 260; ++fd) flood.arrive.push_back(From(fd, "a"));
  sockets_.Add(flood);
  for (int i = 0; i < 5; ++i) sockets_.Add({});
  Turn later;
  for (int fd = 260; fd < 510; ++fd) later.arrive.push_back(From(fd, "a"));
  later.before = [this] { clock_.Advance(seconds(61)); };
  sockets_.Add(later);
  for (int i = 0; i < 5; ++i) sockets_.Add({});
  Play();
  EXPECT_EQ(refused_[ConnectionRefusal::kGarbage], 500u);
  EXPECT_EQ(lines_, 2u);
}

TEST_F(AcceptLoopTest, AListenerThatAFailpointKillsAcceptsNothing) {
  Preface(10);
  ASSERT_TRUE(Failpoints::Configure("net.accept=return(UNAVAILABLE)").ok());
  sockets_.Add({.arrive = {From(10, "a")}});
  sockets_.Add({.before = [this] { clock_.Advance(seconds(1)); }});
  Play();
  EXPECT_TRUE(served_.empty());
}

}  // namespace
}  // namespace ballast::server
