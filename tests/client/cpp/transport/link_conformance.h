// The behaviour of every transport of the client, as one suite over the interface of
// client/cpp/transport/link.h. A transport instantiates it with a LinkBench: the transport, and a
// server that the test plays. Thread safety: callbacks run under the bench's lock; the test's
// thread takes it as a session would.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "ballast/v1/control.pb.h"
#include "client/cpp/job/lent_memory.h"
#include "client/cpp/transport/link.h"
#include "common/base/reason.h"
#include "common/base/sync.h"
#include "proto/convert/methods.h"
#include "tests/client/cpp/transport/link_bench.h"

namespace ballast::client {

// Sends the messages queued by the test, and records arrivals.
class RecordingHandler : public LinkHandler {
 public:
  void OnMessage(const Payload& message) override {
    messages.push_back(message);
    if (on_message) on_message();
  }
  std::optional<Outgoing> NextMessage() override {
    ++asked;
    if (outgoing.empty()) return std::nullopt;
    Outgoing next = std::move(outgoing.front());
    outgoing.erase(outgoing.begin());
    return next;
  }
  void OnClosed(const absl::Status& status) override { ends.push_back(status); }

  std::vector<Outgoing> outgoing;
  std::vector<Payload> messages;
  std::vector<absl::Status> ends;
  std::function<void()> on_message;
  int asked = 0;
};

// Makes the bench of one implementation.
struct MakeLinkBench {
  template <typename Bench>
  static MakeLinkBench Of() {
    return {[]() -> std::unique_ptr<LinkBench> { return std::make_unique<Bench>(); }};
  }

  std::unique_ptr<LinkBench> (*make)();
};

inline void PrintTo(const MakeLinkBench&, std::ostream* os) { *os << "a link"; }

class LinkConformance : public ::testing::TestWithParam<MakeLinkBench> {
 protected:
  LinkConformance() : bench_(GetParam().make()) {}
  ~LinkConformance() override {
    MutexLock lock(mu());
    link_.reset();
    call_.reset();
    timer_.reset();
  }

  Mutex* mu() { return bench_->mu(); }
  Transport* transport() { return bench_->transport(); }
  LinkPeer* peer() { return bench_->peer(); }

  void Open(bool wait_for_server = false) {
    MutexLock lock(mu());
    link_ = transport()->Open({peer()->address(), wait_for_server}, &handler_);
  }
  void SendText(const std::string& head, const std::string& body = "") {
    MutexLock lock(mu());
    Payload::Pieces pieces;
    if (!body.empty()) pieces.push_back({body.data(), body.size()});
    handler_.outgoing.push_back({head, Payload(std::move(pieces), lease_.Lend())});
    link_->Kick();
  }
  void DropLink() {
    MutexLock lock(mu());
    link_.reset();
  }
  void StartCall(std::chrono::milliseconds timeout) {
    MutexLock lock(mu());
    v1::AttachRequest request;
    request.set_slot(7);
    call_ = transport()->Start({peer()->address(), method::kAttach, timeout}, request,
                               [this](absl::StatusOr<Payload> answer) {
                                 answers_.push_back(std::move(answer));
                                 if (on_answer_) on_answer_();
                               });
  }
  bool Until(const std::function<bool()>& done) { return bench_->RunUntil(done); }
  bool PeerHas(size_t messages) {
    return Until([&] { return peer()->received().size() >= messages; });
  }
  bool Ended() {
    return Until([&] { return !handler_.ends.empty(); });
  }
  // Everything under way comes to its end, and nothing more is heard.
  void Settle() { ASSERT_TRUE(transport()->AwaitEnded(transport()->Now() + kPatience)); }

  static constexpr std::chrono::seconds kPatience{60};

  BufferLease lease_;
  std::unique_ptr<LinkBench> bench_;
  RecordingHandler handler_;
  std::unique_ptr<Link> link_;
  std::unique_ptr<CallHandle> call_;
  std::unique_ptr<Timer> timer_;
  std::vector<absl::StatusOr<Payload>> answers_;
  std::function<void()> on_answer_;
};

TEST_P(LinkConformance, MessagesArriveWholeAndInOrderInBothDirections) {
  Open();
  const std::string body(3000, 'b');
  SendText("one");
  SendText("two:", body);
  SendText("three");
  ASSERT_TRUE(PeerHas(3));
  EXPECT_EQ(peer()->received(), (std::vector<std::string>{"one", "two:" + body, "three"}));
  peer()->Send("first");
  peer()->Send(std::string(100'000, 'x'));
  peer()->Send("");
  ASSERT_TRUE(Until([&] { return handler_.messages.size() == 3; }));
  MutexLock lock(mu());
  EXPECT_EQ(handler_.messages[0].ToString(), "first");
  EXPECT_EQ(handler_.messages[1].ToString(), std::string(100'000, 'x'));
  EXPECT_EQ(handler_.messages[2].bytes(), 0u);
}

TEST_P(LinkConformance, APayloadOutlivesItsLink) {
  Open();
  SendText("hello");
  ASSERT_TRUE(PeerHas(1));
  peer()->Send("kept");
  ASSERT_TRUE(Until([&] { return handler_.messages.size() == 1; }));
  DropLink();
  Settle();
  EXPECT_EQ(handler_.messages[0].ToString(), "kept");
}

TEST_P(LinkConformance, OpenCallsNothingBack) {
  MutexLock lock(mu());
  handler_.outgoing.push_back({"early", Payload()});
  link_ = transport()->Open({peer()->address(), false}, &handler_);
  EXPECT_EQ(handler_.asked, 0);
  EXPECT_FALSE(link_->closed());
}

TEST_P(LinkConformance, ALinkAsksForTheNextMessageWithoutAKick) {
  {
    MutexLock lock(mu());
    handler_.outgoing.push_back({"one", Payload()});
    handler_.outgoing.push_back({"two", Payload()});
    link_ = transport()->Open({peer()->address(), false}, &handler_);
  }
  EXPECT_TRUE(PeerHas(2));
}

TEST_P(LinkConformance, LentMemoryComesBackWhenItWasSent) {
  Open();
  const std::string body(500'000, 'l');
  SendText("", body);
  ASSERT_TRUE(PeerHas(1));
  EXPECT_TRUE(Until([&] { return lease_.WaitReleased(std::chrono::nanoseconds(0)); }));
  MutexLock lock(mu());
  EXPECT_EQ(transport()->copied_bytes(), 0u);
}

TEST_P(LinkConformance, LentMemoryComesBackFromALinkThatIsDroppedWithUnsentMessages) {
  Open();
  const std::string body(500'000, 'l');
  for (int i = 0; i < 20; ++i) SendText("", body);
  {
    MutexLock lock(mu());
    link_.reset();
    handler_.outgoing.clear();
  }
  Settle();
  EXPECT_TRUE(lease_.WaitReleased(kPatience));
}

TEST_P(LinkConformance, HalfCloseSendsEverythingFirst) {
  Open();
  SendText("one");
  SendText("two");
  {
    MutexLock lock(mu());
    link_->HalfClose();
  }
  ASSERT_TRUE(Until([&] { return peer()->half_closes() == 1; }));
  EXPECT_EQ(peer()->received().size(), 2u);
  peer()->End(absl::OkStatus());
  ASSERT_TRUE(Ended());
  MutexLock lock(mu());
  EXPECT_TRUE(handler_.ends[0].ok()) << handler_.ends[0];
}

TEST_P(LinkConformance, TheServersErrorArrivesOnceWithItsReasonAfterItsMessages) {
  Open();
  SendText("hello");
  ASSERT_TRUE(PeerHas(1));
  peer()->Send("last words");
  peer()->End(ReasonedError(absl::StatusCode::kAborted, Reason::kStaleEpoch, "too old"));
  ASSERT_TRUE(Ended());
  DropLink();
  Settle();
  ASSERT_EQ(handler_.ends.size(), 1u);
  EXPECT_EQ(handler_.ends[0].code(), absl::StatusCode::kAborted);
  EXPECT_EQ(ReasonOf(handler_.ends[0]), Reason::kStaleEpoch);
  ASSERT_EQ(handler_.messages.size(), 1u);
}

TEST_P(LinkConformance, CancelEndsALinkOnce) {
  Open();
  SendText("hello");
  ASSERT_TRUE(PeerHas(1));
  {
    MutexLock lock(mu());
    link_->Cancel();
    EXPECT_TRUE(handler_.ends.empty());
  }
  ASSERT_TRUE(Ended());
  MutexLock lock(mu());
  EXPECT_TRUE(link_->closed());
  EXPECT_EQ(ReasonOf(handler_.ends[0]), Reason::kUnspecified);
  link_->Cancel();
  link_->Kick();
  EXPECT_EQ(handler_.ends.size(), 1u);
}

TEST_P(LinkConformance, ADroppedLinkIsSilent) {
  Open();
  SendText("hello");
  ASSERT_TRUE(PeerHas(1));
  DropLink();
  peer()->Send("into the void");
  Settle();
  EXPECT_TRUE(handler_.messages.empty());
  EXPECT_TRUE(handler_.ends.empty());
}

TEST_P(LinkConformance, ALinkMayBeDroppedWhileItCallsItsHandler) {
  handler_.on_message = [this] { link_.reset(); };
  Open();
  SendText("hello");
  ASSERT_TRUE(PeerHas(1));
  peer()->Send("one");
  peer()->Send("two");
  ASSERT_TRUE(Until([&] { return link_ == nullptr; }));
  Settle();
  EXPECT_EQ(handler_.messages.size(), 1u);
  EXPECT_TRUE(handler_.ends.empty());
}

TEST_P(LinkConformance, AServerThatIsAwayEndsTheLink) {
  peer()->Stop();
  Open();
  ASSERT_TRUE(Ended());
  MutexLock lock(mu());
  EXPECT_EQ(handler_.ends[0].code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(handler_.ends[0]), Reason::kUnspecified);
}

TEST_P(LinkConformance, ALinkMayWaitForItsServer) {
  peer()->Stop();
  Open(/*wait_for_server=*/true);
  SendText("hello");
  peer()->Restart();
  EXPECT_TRUE(PeerHas(1));
  EXPECT_TRUE(handler_.ends.empty());
}

TEST_P(LinkConformance, AServerThatGoesAwayEndsTheLink) {
  Open();
  SendText("hello");
  ASSERT_TRUE(PeerHas(1));
  peer()->Stop();
  ASSERT_TRUE(Ended());
  MutexLock lock(mu());
  EXPECT_EQ(ReasonOf(handler_.ends[0]), Reason::kUnspecified);
}

TEST_P(LinkConformance, ACallBringsTheAnswerOrTheServersError) {
  peer()->AnswerCalls("forty-two");
  StartCall(kPatience);
  ASSERT_TRUE(Until([&] { return answers_.size() == 1; }));
  ASSERT_TRUE(answers_[0].ok()) << answers_[0].status();
  EXPECT_EQ(answers_[0]->ToString(), "forty-two");
  peer()->AnswerCalls(
      ReasonedError(absl::StatusCode::kNotFound, Reason::kUnknownJob, "never heard of it"));
  StartCall(kPatience);
  ASSERT_TRUE(Until([&] { return answers_.size() == 2; }));
  EXPECT_EQ(answers_[1].status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReasonOf(answers_[1].status()), Reason::kUnknownJob);
}

TEST_P(LinkConformance, ACallEndsAtItsTimeoutOrWithAServerThatIsAway) {
  StartCall(std::chrono::milliseconds(20));
  ASSERT_TRUE(Until([&] { return answers_.size() == 1; }));
  EXPECT_EQ(answers_[0].status().code(), absl::StatusCode::kDeadlineExceeded);
  peer()->Stop();
  StartCall(kPatience);
  ASSERT_TRUE(Until([&] { return answers_.size() == 2; }));
  EXPECT_EQ(answers_[1].status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(answers_[1].status()), Reason::kUnspecified);
}

TEST_P(LinkConformance, ADroppedCallIsSilentAndOneMayBeDroppedByItsAnswer) {
  StartCall(kPatience);
  {
    MutexLock lock(mu());
    call_.reset();
  }
  Settle();
  EXPECT_TRUE(answers_.empty());
  peer()->AnswerCalls("yes");
  on_answer_ = [this] { call_.reset(); };
  StartCall(kPatience);
  ASSERT_TRUE(Until([&] { return answers_.size() == 1; }));
  Settle();
}

TEST_P(LinkConformance, ATimerFiresOncePerSetAndNotBefore) {
  std::vector<Time> fired;
  Time due;
  {
    MutexLock lock(mu());
    timer_ = transport()->MakeTimer([&] { fired.push_back(transport()->Now()); });
    due = transport()->Now() + std::chrono::milliseconds(30);
    timer_->Set(due);
  }
  ASSERT_TRUE(Until([&] { return fired.size() == 1; }));
  EXPECT_GE(fired[0], due);
  MutexLock lock(mu());
  timer_->Set(transport()->Now() + std::chrono::hours(1));
  EXPECT_EQ(fired.size(), 1u);
}

TEST_P(LinkConformance, ATimerCanBeMovedBothWays) {
  std::vector<Time> fired;
  Time late;
  {
    MutexLock lock(mu());
    timer_ = transport()->MakeTimer([&] { fired.push_back(transport()->Now()); });
    timer_->Set(transport()->Now() + std::chrono::hours(1));
    timer_->Set(transport()->Now() + std::chrono::milliseconds(1));
  }
  ASSERT_TRUE(Until([&] { return fired.size() == 1; }));
  {
    MutexLock lock(mu());
    late = transport()->Now() + std::chrono::milliseconds(60);
    timer_->Set(transport()->Now() + std::chrono::milliseconds(1));
    timer_->Set(late);
  }
  ASSERT_TRUE(Until([&] { return fired.size() == 2; }));
  EXPECT_GE(fired[1], late);
}

TEST_P(LinkConformance, ATimerMaySetItselfAgainAndIsSilentWhenDropped) {
  int fired = 0;
  {
    MutexLock lock(mu());
    timer_ = transport()->MakeTimer([&] {
      if (++fired < 3) timer_->Set(transport()->Now());
    });
    timer_->Set(transport()->Now());
  }
  ASSERT_TRUE(Until([&] { return fired == 3; }));
  {
    MutexLock lock(mu());
    timer_->Set(transport()->Now());
    timer_.reset();
  }
  Settle();
  EXPECT_EQ(fired, 3);
}

TEST_P(LinkConformance, AwaitEndedGivesUpAtItsDeadlineOrHasNothingToWaitFor) {
  EXPECT_TRUE(transport()->AwaitEnded(transport()->Now()));
}

}  // namespace ballast::client
