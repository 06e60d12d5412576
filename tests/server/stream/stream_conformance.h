// The behaviour of every transport of the server, as one suite over the interface of
// server/stream/message_stream.h. A transport instantiates it with a StreamBench: the transport,
// and the client's transport that reaches it. Thread safety: handlers run on the transport's
// threads, the client's callbacks under the bench's lock.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "ballast/v1/control.pb.h"
#include "client/cpp/transport/link.h"
#include "common/base/reason.h"
#include "common/base/sync.h"
#include "proto/convert/methods.h"
#include "server/stream/method_registry.h"
#include "server/stream/unary_call.h"

namespace ballast::server {

// The surroundings of a stream in a test: a server, and a client's transport that reaches it.
class StreamBench {
 public:
  virtual ~StreamBench() = default;
  // Every Exchange call gets a handler of `factory`. Called once, first.
  virtual void Serve(StreamFactory factory) = 0;
  virtual std::string address() const = 0;
  // The client's lock and transport.
  virtual Mutex* mu() = 0;
  virtual client::Transport* transport() = 0;
  // Lets events happen until `done`, which runs under the lock, is true; false after too long.
  virtual bool RunUntil(const std::function<bool()>& done) = 0;
};

// A handler's observations, which outlive it, and the messages that it is to send.
struct StreamRecord {
  Mutex mu;
  std::vector<Outgoing> outgoing ABSL_GUARDED_BY(mu);
  std::vector<Payload> messages ABSL_GUARDED_BY(mu);
  int asked ABSL_GUARDED_BY(mu) = 0;
  int reads_done ABSL_GUARDED_BY(mu) = 0;
  std::vector<bool> ends ABSL_GUARDED_BY(mu);  // cancelled
  int inside ABSL_GUARDED_BY(mu) = 0;
  int overlapping ABSL_GUARDED_BY(mu) = 0;  // events within another one
  int late ABSL_GUARDED_BY(mu) = 0;         // events after OnDone
  bool reads_on = true;                     // constant once the call has begun
  // In NextMessage, before it answers; the number of earlier questions.
  std::function<void(MessageStream* stream, int asked)> on_next;
};

class RecordingStreamHandler : public StreamHandler {
 public:
  RecordingStreamHandler(StreamRecord* record, std::shared_ptr<MessageStream> stream)
      : record_(record), stream_(std::move(stream)) {}

  void OnMessage(Payload message) override {
    const Event event(record_);
    {
      MutexLock lock(&record_->mu);
      record_->messages.push_back(std::move(message));
    }
    if (record_->reads_on) stream_->Read();
  }
  void OnReadsDone() override {
    const Event event(record_);
    MutexLock lock(&record_->mu);
    ++record_->reads_done;
  }
  std::optional<Outgoing> NextMessage() override {
    const Event event(record_);
    int asked = 0;
    {
      MutexLock lock(&record_->mu);
      asked = record_->asked++;
    }
    std::optional<Outgoing> next;
    {
      MutexLock lock(&record_->mu);
      if (!record_->outgoing.empty()) {
        next = std::move(record_->outgoing.front());
        record_->outgoing.erase(record_->outgoing.begin());
      }
    }
    // After the answer is found: a Kick of it comes during the question.
    if (record_->on_next) record_->on_next(stream_.get(), asked);
    return next;
  }
  void OnDone(bool cancelled) override {
    const Event event(record_);
    MutexLock lock(&record_->mu);
    record_->ends.push_back(cancelled);
  }

 private:
  class Event {
   public:
    explicit Event(StreamRecord* record) : record_(record) {
      MutexLock lock(&record_->mu);
      record_->overlapping += record_->inside++;
      if (!record_->ends.empty()) ++record_->late;
    }
    ~Event() {
      MutexLock lock(&record_->mu);
      --record_->inside;
    }

   private:
    StreamRecord* const record_;
  };

  StreamRecord* const record_;
  const std::shared_ptr<MessageStream> stream_;
};

// The client's end of the call. Under the bench's lock.
class RecordingClient : public client::LinkHandler {
 public:
  void OnMessage(const Payload& message) override { messages.push_back(message.ToString()); }
  std::optional<Outgoing> NextMessage() override {
    if (outgoing.empty()) return std::nullopt;
    Outgoing next{std::move(outgoing.front()), Payload()};
    outgoing.erase(outgoing.begin());
    return next;
  }
  void OnClosed(const absl::Status& status) override { ends.push_back(status); }

  std::vector<std::string> outgoing;
  std::vector<std::string> messages;
  std::vector<absl::Status> ends;
};

// Makes the bench of one implementation.
struct MakeStreamBench {
  template <typename Bench>
  static MakeStreamBench Of() {
    return {[]() -> std::unique_ptr<StreamBench> { return std::make_unique<Bench>(); }};
  }

  std::unique_ptr<StreamBench> (*make)();
};

inline void PrintTo(const MakeStreamBench&, std::ostream* os) { *os << "a stream"; }

class StreamConformance : public ::testing::TestWithParam<MakeStreamBench> {
 protected:
  static constexpr std::chrono::seconds kPatience{60};

  StreamConformance() : bench_(GetParam().make()) {}
  ~StreamConformance() override {
    {
      MutexLock lock(bench_->mu());
      link_.reset();
      call_.reset();
    }
    bench_.reset();
    MutexLock lock(&record_.mu);
    EXPECT_EQ(record_.overlapping, 0) << "events that overlap";
    EXPECT_EQ(record_.late, 0) << "events after OnDone";
    EXPECT_LE(record_.ends.size(), 1u);
  }

  // Begins a call, and waits for its handler. `read`: it asks for the first message.
  void Open(bool read = true) {
    bench_->Serve([this, read](std::shared_ptr<MessageStream> stream) {
      auto handler = std::make_shared<RecordingStreamHandler>(&record_, stream);
      {
        MutexLock lock(&record_.mu);
        handler_ = handler;
        stream_ = stream;
      }
      if (read) stream->Read();
      return handler;
    });
    {
      MutexLock lock(bench_->mu());
      link_ = bench_->transport()->Open({bench_->address(), false}, &client_);
    }
    ASSERT_TRUE(Until([this] { return stream() != nullptr; }));
  }
  bool Until(const std::function<bool()>& done) { return bench_->RunUntil(done); }
  std::shared_ptr<MessageStream> stream() {
    MutexLock lock(&record_.mu);
    return stream_;
  }
  // From the client.
  void Send(const std::string& text) {
    MutexLock lock(bench_->mu());
    client_.outgoing.push_back(text);
    link_->Kick();
  }
  void HalfClose() {
    MutexLock lock(bench_->mu());
    link_->HalfClose();
  }
  void BreakOff() {
    MutexLock lock(bench_->mu());
    link_->Cancel();
  }
  // Makes a call with one answer, which the server keeps waiting.
  void Call(std::chrono::milliseconds timeout) {
    bench_->Serve(UnaryCall::Factory([this](std::shared_ptr<UnaryCall> call, const Payload&) {
      call->OnCancel([this] {
        MutexLock lock(&record_.mu);
        ++cancels_;
      });
      MutexLock lock(&record_.mu);
      waiting_ = std::move(call);
    }));
    {
      MutexLock lock(bench_->mu());
      call_ = bench_->transport()->Start(
          {bench_->address(), method::kExchange, timeout}, v1::AttachRequest(),
          [this](absl::StatusOr<Payload> answer) { answers_.push_back(std::move(answer)); });
    }
    ASSERT_TRUE(Until([this] {
      MutexLock lock(&record_.mu);
      return waiting_ != nullptr;
    }));
  }
  void HangUp() {
    MutexLock lock(bench_->mu());
    call_.reset();
  }
  int Cancels() {
    MutexLock lock(&record_.mu);
    return cancels_;
  }
  bool Answered() {
    return Until([this] { return !answers_.empty(); });
  }
  // Answers the call and lets go of it. Returns whether the transport lets go of it, too.
  bool AnswerAndForget() {
    std::shared_ptr<UnaryCall> call;
    {
      MutexLock lock(&record_.mu);
      call = std::move(waiting_);
    }
    call->Reply(v1::AttachReply());
    const std::weak_ptr<UnaryCall> weak = call;
    call = nullptr;
    return Until([&] { return weak.expired(); });
  }

  // For the handler to send; no Kick.
  void Queue(const std::string& head, Payload body = Payload()) {
    MutexLock lock(&record_.mu);
    record_.outgoing.push_back({head, std::move(body)});
  }
  std::vector<std::string> Arrived() {
    MutexLock lock(&record_.mu);
    std::vector<std::string> texts;
    for (const Payload& message : record_.messages) texts.push_back(message.ToString());
    return texts;
  }
  bool HasArrived(size_t messages) {
    return Until([&] { return Arrived().size() >= messages; });
  }
  bool ClientHas(size_t messages) {
    return Until([&] { return client_.messages.size() >= messages; });
  }
  // Both ends have heard of the end; returns whether the handler's was "cancelled".
  bool Ended(bool* cancelled) {
    return Until([&] {
      MutexLock lock(&record_.mu);
      if (record_.ends.empty() || client_.ends.empty()) return false;
      *cancelled = record_.ends[0];
      return true;
    });
  }
  absl::Status ClientStatus() {
    MutexLock lock(bench_->mu());
    return client_.ends.empty() ? absl::UnknownError("the client knows no end") : client_.ends[0];
  }

  StreamRecord record_;
  RecordingClient client_;
  std::unique_ptr<StreamBench> bench_;
  std::unique_ptr<client::Link> link_;
  std::weak_ptr<StreamHandler> handler_;
  std::shared_ptr<MessageStream> stream_;
  // Of a call with one answer.
  std::unique_ptr<client::CallHandle> call_;
  std::vector<absl::StatusOr<Payload>> answers_;  // at the client
  std::shared_ptr<UnaryCall> waiting_;            // at the server
  int cancels_ = 0;
};

TEST_P(StreamConformance, MessagesArriveWholeAndInOrderInBothDirections) {
  Open();
  const std::string large(100'000, 'x');
  for (const char* text : {"one", "two"}) Send(text);
  Send(large);
  ASSERT_TRUE(HasArrived(3));
  EXPECT_EQ(Arrived(), (std::vector<std::string>{"one", "two", large}));
  const std::string body(3000, 'b');
  Queue("first");
  Queue("head:", Payload({{body.data(), 1000}, {body.data() + 1000, 2000}}, nullptr));
  Queue("");
  stream()->Kick();
  ASSERT_TRUE(ClientHas(3));
  MutexLock lock(bench_->mu());
  EXPECT_EQ(client_.messages, (std::vector<std::string>{"first", "head:" + body, ""}));
}

TEST_P(StreamConformance, TheFactsOfACallAreThere) {
  Open();
  EXPECT_EQ(stream()->method(), method::kExchange);
  EXPECT_FALSE(stream()->peer().empty());
  EXPECT_FALSE(stream()->caller().secured);
  EXPECT_EQ(stream()->directory_names().Outward("text"), "text");
}

TEST_P(StreamConformance, AMessageIsReadOnlyWhenItIsAskedFor) {
  record_.reads_on = false;
  Open(/*read=*/false);
  for (const char* text : {"one", "two", "three"}) Send(text);
  // The client has its message only after the server could have taken one by itself.
  Queue("ping");
  stream()->Kick();
  ASSERT_TRUE(ClientHas(1));
  EXPECT_TRUE(Arrived().empty());
  stream()->Read();
  ASSERT_TRUE(HasArrived(1));
  Queue("ping");
  stream()->Kick();
  ASSERT_TRUE(ClientHas(2));
  EXPECT_EQ(Arrived(), std::vector<std::string>{"one"});
  stream()->Read();
  ASSERT_TRUE(HasArrived(2));
}

TEST_P(StreamConformance, ReadsWhileOneIsAwaitedAreOne) {
  record_.reads_on = false;
  Open(/*read=*/false);
  for (int i = 0; i < 3; ++i) stream()->Read();
  Send("one");
  Send("two");
  ASSERT_TRUE(HasArrived(1));
  Queue("ping");
  stream()->Kick();
  ASSERT_TRUE(ClientHas(1));
  EXPECT_EQ(Arrived(), std::vector<std::string>{"one"});
}

TEST_P(StreamConformance, AKickWithNothingSendsNothing) {
  Open();
  for (int i = 0; i < 3; ++i) stream()->Kick();
  ASSERT_TRUE(Until([&] {
    MutexLock lock(&record_.mu);
    return record_.asked > 0;
  }));
  Queue("something");
  stream()->Kick();
  ASSERT_TRUE(ClientHas(1));
  MutexLock lock(bench_->mu());
  EXPECT_EQ(client_.messages, std::vector<std::string>{"something"});
}

TEST_P(StreamConformance, AfterEachWriteTheNextMessageIsAskedFor) {
  Open();
  for (const char* text : {"one", "two", "three"}) Queue(text);
  stream()->Kick();
  ASSERT_TRUE(ClientHas(3));
}

TEST_P(StreamConformance, AKickDuringTheQuestionIsNotLost) {
  record_.on_next = [this](MessageStream* stream, int asked) {
    if (asked > 0) return;
    Queue("late");
    stream->Kick();
  };
  Open();
  stream()->Kick();
  EXPECT_TRUE(ClientHas(1));
}

TEST_P(StreamConformance, FinishSendsWaitingMessagesFirstAndItsReason) {
  Open();
  Queue("one");
  Queue("two");
  stream()->Finish(ReasonedError(absl::StatusCode::kAborted, Reason::kStaleEpoch, "too old"));
  bool cancelled = true;
  ASSERT_TRUE(Ended(&cancelled));
  EXPECT_FALSE(cancelled);
  EXPECT_EQ(ClientStatus().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(ReasonOf(ClientStatus()), Reason::kStaleEpoch);
  EXPECT_EQ(ClientStatus().message(), "too old");
  MutexLock lock(bench_->mu());
  EXPECT_EQ(client_.messages, (std::vector<std::string>{"one", "two"}));
}

TEST_P(StreamConformance, FinishWhileAMessageIsOnItsWayWaitsForIt) {
  record_.on_next = [](MessageStream* stream, int asked) {
    if (asked == 0) stream->Finish(absl::FailedPreconditionError("enough"));
  };
  Open();
  const std::string large(1'000'000, 'x');
  Queue("", Payload({{large.data(), large.size()}}, nullptr));
  Queue("two");
  stream()->Kick();
  bool cancelled = true;
  ASSERT_TRUE(Ended(&cancelled));
  EXPECT_FALSE(cancelled);
  EXPECT_EQ(ClientStatus().code(), absl::StatusCode::kFailedPrecondition);
  MutexLock lock(bench_->mu());
  EXPECT_EQ(client_.messages, (std::vector<std::string>{large, "two"}));
}

TEST_P(StreamConformance, TheFirstFinishCounts) {
  Open();
  stream()->Finish(absl::NotFoundError("first"));
  stream()->Finish(absl::InternalError("second"));
  bool cancelled = true;
  ASSERT_TRUE(Ended(&cancelled));
  EXPECT_EQ(ClientStatus().code(), absl::StatusCode::kNotFound);
}

TEST_P(StreamConformance, AHalfCloseComesAfterAllMessagesAndLeavesTheOtherHalfOpen) {
  Open();
  Send("one");
  Send("two");
  HalfClose();
  ASSERT_TRUE(Until([&] {
    MutexLock lock(&record_.mu);
    return record_.reads_done == 1;
  }));
  EXPECT_EQ(Arrived().size(), 2u);
  Queue("goodbye");
  stream()->Finish(absl::OkStatus());
  bool cancelled = true;
  ASSERT_TRUE(Ended(&cancelled));
  EXPECT_FALSE(cancelled);
  EXPECT_TRUE(ClientStatus().ok()) << ClientStatus();
  MutexLock lock(bench_->mu());
  EXPECT_EQ(client_.messages, std::vector<std::string>{"goodbye"});
}

TEST_P(StreamConformance, CancelBreaksOffAtOnce) {
  Open();
  stream()->Cancel();
  bool cancelled = false;
  ASSERT_TRUE(Ended(&cancelled));
  EXPECT_TRUE(cancelled);
  EXPECT_FALSE(ClientStatus().ok());
  EXPECT_EQ(ReasonOf(ClientStatus()), Reason::kUnspecified);
}

TEST_P(StreamConformance, AClientThatBreaksOffEndsTheStreamOnceAndForGood) {
  Open();
  Send("hello");
  ASSERT_TRUE(HasArrived(1));
  BreakOff();
  bool cancelled = false;
  ASSERT_TRUE(Ended(&cancelled));
  EXPECT_TRUE(cancelled);
  const std::shared_ptr<MessageStream> over = stream();
  Queue("into the void");
  over->Read();
  over->Kick();
  over->Finish(absl::OkStatus());
  over->Cancel();
  EXPECT_TRUE(Until([&] { return handler_.expired(); })) << "the handler is not released";
}

TEST_P(StreamConformance, TheHandlerIsReleasedAfterTheEndAlthoughItsStreamIsHeld) {
  Open();
  Queue("last words");
  stream()->Finish(absl::OkStatus());
  bool cancelled = true;
  ASSERT_TRUE(Ended(&cancelled));
  EXPECT_TRUE(Until([&] { return handler_.expired(); }));
}

TEST_P(StreamConformance, MemoryOfMessagesIsHeldAsLongAsItIsNeeded) {
  Open();
  Send("kept");
  ASSERT_TRUE(HasArrived(1));
  auto owner = std::make_shared<const std::string>(100'000, 'l');
  const std::weak_ptr<const std::string> lent = owner;
  Payload::Pieces pieces{{owner->data(), owner->size()}};
  Queue("", Payload(std::move(pieces), std::move(owner)));
  stream()->Finish(absl::OkStatus());
  bool cancelled = true;
  ASSERT_TRUE(Ended(&cancelled));
  EXPECT_TRUE(Until([&] { return lent.expired(); }));
  EXPECT_EQ(Arrived(), std::vector<std::string>{"kept"});
  MutexLock lock(bench_->mu());
  ASSERT_EQ(client_.messages.size(), 1u);
  EXPECT_EQ(client_.messages[0], std::string(100'000, 'l'));
}

TEST_P(StreamConformance, AnAnsweredCallIsNotCancelled) {
  Call(kPatience);
  EXPECT_TRUE(AnswerAndForget());
  ASSERT_TRUE(Answered());
  HangUp();
  EXPECT_EQ(Cancels(), 0);
  MutexLock lock(bench_->mu());
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_TRUE(answers_[0].ok()) << answers_[0].status();
}

TEST_P(StreamConformance, ACallerThatHangsUpCancelsItsCallAndHearsNoLaterAnswer) {
  Call(kPatience);
  HangUp();
  ASSERT_TRUE(Until([&] { return Cancels() == 1; }));
  EXPECT_TRUE(AnswerAndForget()) << "the call is not released";
  EXPECT_EQ(Cancels(), 1);
  MutexLock lock(bench_->mu());
  EXPECT_TRUE(answers_.empty());
}

TEST_P(StreamConformance, ADeadlineCancelsItsCallAndALaterAnswerChangesNothing) {
  Call(std::chrono::milliseconds(50));
  ASSERT_TRUE(Until([&] { return Cancels() == 1; }));
  EXPECT_TRUE(AnswerAndForget()) << "the call is not released";
  ASSERT_TRUE(Answered());
  EXPECT_EQ(Cancels(), 1);
  MutexLock lock(bench_->mu());
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_EQ(answers_[0].status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_P(StreamConformance, ACallThatHasEndedIsCancelledAtOnce) {
  Call(kPatience);
  HangUp();
  ASSERT_TRUE(Until([&] { return Cancels() == 1; }));
  bool told = false;
  {
    MutexLock lock(&record_.mu);
    waiting_->OnCancel([&] { told = true; });
  }
  EXPECT_TRUE(told);
  EXPECT_TRUE(AnswerAndForget());
}

TEST_P(StreamConformance, EventsComeOneAtATime) {
  record_.on_next = [](MessageStream* stream, int asked) {
    if (asked < 50) stream->Kick();
  };
  Open();
  for (int i = 0; i < 50; ++i) {
    Send("up");
    Queue("down");
    stream()->Kick();
  }
  ASSERT_TRUE(HasArrived(50));
  ASSERT_TRUE(ClientHas(50));
}

}  // namespace ballast::server
