// The behaviour of every transport of calls between servers, as one suite over the interface of
// server/stream/peer_transport.h. A transport instantiates it with a PeerBench.
// Thread safety: handlers and answers run on the transport's threads.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "ballast/v1/peer.pb.h"
#include "common/base/reason.h"
#include "common/base/sync.h"
#include "proto/convert/frame_codec.h"
#include "proto/convert/methods.h"
#include "server/stream/peer_transport.h"
#include "server/stream/unary_call.h"

namespace ballast::server {

// The surroundings of a call in a test: a server that listens at first, and a transport to it.
class PeerBench {
 public:
  virtual ~PeerBench() = default;
  virtual std::string address() const = 0;
  virtual PeerTransport* transport() = 0;
  // The server's process ends; another one begins at the same address.
  virtual void End() = 0;
  virtual void Start() = 0;
  // Lets events happen until `done` is true; false after too long.
  virtual bool RunUntil(const std::function<bool()>& done) = 0;
};

// Makes the bench of one implementation, whose server has the one method kPeerRestoreJob.
struct MakePeerBench {
  template <typename Bench>
  static MakePeerBench Of() {
    return {[](UnaryCall::Handler handler) -> std::unique_ptr<PeerBench> {
      return std::make_unique<Bench>(std::move(handler));
    }};
  }

  std::unique_ptr<PeerBench> (*make)(UnaryCall::Handler handler);
};

inline void PrintTo(const MakePeerBench&, std::ostream* os) { *os << "a transport"; }

class PeerTransportConformance : public ::testing::TestWithParam<MakePeerBench> {
 protected:
  // An answer, or none yet.
  struct Answer {
    int times = 0;
    absl::Status status;
    std::string text;  // of the reply
  };

  PeerTransportConformance()
      : bench_(GetParam().make([this](std::shared_ptr<UnaryCall> call, const Payload& request) {
          MutexLock lock(&mu_);
          requests_.push_back(request.ToString());
          if (!answers_) return held_.push_back(std::move(call));
          if (!refusal_.ok()) return call->Fail(refusal_);
          v1::PeerRestored reply;
          reply.set_copied("re: " + requests_.back());
          call->Reply(reply);
        })) {}
  ~PeerTransportConformance() override {
    bench_->transport()->Stop();
    for (const auto& answer : told_) EXPECT_EQ(answer->times, 1);
    held_.clear();
    bench_.reset();
  }

  std::shared_ptr<Answer> Call(const Payload& request, PeerCallOptions options) {
    auto answer = std::make_shared<Answer>();
    told_.push_back(answer);
    bench_->transport()->Call(
        bench_->address(), options, request, [this, answer](const absl::StatusOr<Payload>& told) {
          v1::PeerRestored reply;
          const absl::Status parsed =
              told.ok() ? ParseMessage(*told, size_t{16} << 20, &reply) : told.status();
          MutexLock lock(&mu_);
          ++answer->times;
          answer->status = parsed;
          answer->text = reply.copied();
        });
    return answer;
  }
  std::shared_ptr<Answer> Call(const std::string& request, bool wait_for_ready = false,
                               std::chrono::nanoseconds timeout = std::chrono::minutes(1)) {
    return Call(Payload::FromString(request),
                {method::kPeerRestoreJob, timeout, wait_for_ready, ""});
  }
  bool Answered(const std::shared_ptr<Answer>& answer) {
    return bench_->RunUntil([&] {
      MutexLock lock(&mu_);
      return answer->times > 0;
    });
  }
  bool HasArrived(size_t requests) {
    return bench_->RunUntil([&] {
      MutexLock lock(&mu_);
      return requests_.size() >= requests;
    });
  }
  // From now on.
  void HoldAnswers() {
    MutexLock lock(&mu_);
    answers_ = false;
  }

  Mutex mu_;
  bool answers_ ABSL_GUARDED_BY(mu_) = true;
  absl::Status refusal_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> requests_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<UnaryCall>> held_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<Answer>> told_;  // of all calls; each gets one in the end
  std::unique_ptr<PeerBench> bench_;
};

TEST_P(PeerTransportConformance, RequestsArriveWholeAndEachGetsItsReply) {
  const auto small = Call("one");
  const auto empty = Call("");
  const std::string large(1'000'000, 'x');
  const auto pieces = Call(Payload({{large.data(), 1000}, {large.data() + 1000, 999'000}}, nullptr),
                           {method::kPeerRestoreJob, std::chrono::minutes(1), false, ""});
  for (const auto& answer : {small, empty, pieces}) {
    ASSERT_TRUE(Answered(answer));
    EXPECT_EQ(answer->status, absl::OkStatus());
  }
  EXPECT_EQ(small->text, "re: one");
  EXPECT_EQ(empty->text, "re: ");
  EXPECT_EQ(pieces->text, "re: " + large);
}

TEST_P(PeerTransportConformance, AnErrorKeepsItsCodeReasonAndFields) {
  {
    MutexLock lock(&mu_);
    refusal_ = ReasonedError(absl::StatusCode::kUnavailable, Reason::kRecovering, "it starts",
                             {.server = 3, .address = "there:1"});
  }
  const auto answer = Call("one");
  ASSERT_TRUE(Answered(answer));
  EXPECT_EQ(answer->status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(answer->status.message(), "it starts");
  EXPECT_EQ(ReasonOf(answer->status), Reason::kRecovering);
  EXPECT_EQ(FieldsOf(answer->status).server, 3);
  EXPECT_EQ(FieldsOf(answer->status).address, "there:1");
}

TEST_P(PeerTransportConformance, AnUnknownMethodIsUnimplemented) {
  const auto answer =
      Call(Payload::FromString("one"), {"/ballast.v1.Peer/Nothing", std::chrono::minutes(1),
                                        /*wait_for_ready=*/false, ""});
  ASSERT_TRUE(Answered(answer));
  EXPECT_EQ(answer->status.code(), absl::StatusCode::kUnimplemented);
}

TEST_P(PeerTransportConformance, ACallWithoutAnAnswerEndsAtItsDeadline) {
  HoldAnswers();
  const auto answer = Call("one", /*wait_for_ready=*/true, std::chrono::milliseconds(100));
  ASSERT_TRUE(Answered(answer));
  EXPECT_EQ(answer->status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ReasonOf(answer->status), Reason::kUnspecified);
}

TEST_P(PeerTransportConformance, AServerThatDoesNotListenIsUnavailableAtOnce) {
  bench_->End();
  const auto answer = Call("one");
  ASSERT_TRUE(Answered(answer));
  EXPECT_EQ(answer->status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(answer->status), Reason::kUnspecified);
}

TEST_P(PeerTransportConformance, ACallWaitsForAServerThatStartsIfItIsToldTo) {
  bench_->End();
  const auto away = Call("one");
  const auto waits = Call("two", /*wait_for_ready=*/true);
  ASSERT_TRUE(Answered(away));
  {
    MutexLock lock(&mu_);
    EXPECT_EQ(waits->times, 0);
  }
  bench_->Start();
  ASSERT_TRUE(Answered(waits));
  EXPECT_EQ(waits->status, absl::OkStatus());
  EXPECT_EQ(waits->text, "re: two");
}

TEST_P(PeerTransportConformance, ACallThatWaitsForAServerEndsAtItsDeadline) {
  bench_->End();
  const auto answer = Call("one", /*wait_for_ready=*/true, std::chrono::milliseconds(100));
  ASSERT_TRUE(Answered(answer));
  EXPECT_EQ(answer->status.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_P(PeerTransportConformance, ACallEndsLongBeforeItsDeadlineWhenItsServerEnds) {
  HoldAnswers();
  const auto answer = Call("one", /*wait_for_ready=*/false, std::chrono::hours(24));
  ASSERT_TRUE(HasArrived(1));
  bench_->End();
  ASSERT_TRUE(Answered(answer));
  EXPECT_EQ(answer->status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(answer->status), Reason::kUnspecified);
}

TEST_P(PeerTransportConformance, StopCancelsAllCallsAndLaterOnes) {
  HoldAnswers();
  const auto arrived = Call("one");
  ASSERT_TRUE(HasArrived(1));
  bench_->End();
  const auto waits = Call("two", /*wait_for_ready=*/true);
  bench_->transport()->Stop();
  const auto late = Call("three");
  bench_->transport()->Stop();
  // At the first, the end of its server may have come before.
  EXPECT_EQ(arrived->times, 1);
  for (const auto& answer : {waits, late}) {
    EXPECT_EQ(answer->times, 1);
    EXPECT_EQ(answer->status.code(), absl::StatusCode::kCancelled);
  }
}

TEST_P(PeerTransportConformance, MemoryOfARequestIsHeldAsLongAsItIsNeeded) {
  auto owner = std::make_shared<const std::string>(100'000, 'l');
  const std::weak_ptr<const std::string> lent = owner;
  Payload::Pieces pieces{{owner->data(), owner->size()}};
  const auto answer = Call(Payload(std::move(pieces), std::move(owner)),
                           {method::kPeerRestoreJob, std::chrono::minutes(1), false, ""});
  ASSERT_TRUE(Answered(answer));
  EXPECT_EQ(answer->text, "re: " + std::string(100'000, 'l'));
  bench_->transport()->Stop();
  EXPECT_TRUE(bench_->RunUntil([&] { return lent.expired(); }));
}

}  // namespace ballast::server
