// AttachToHome over connections that the test plays, in the test's own time: redirects, servers
// that are away, errors that another try can mend and those that none can, and news of an outage.
#include "client/cpp/attach/home_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/reason.h"
#include "proto/convert/methods.h"

namespace ballast::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;

absl::Status NotHome(const std::string& home) {
  return ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kNotHome, "not the home",
                       {.server = 4, .address = home});
}
absl::Status Away() { return absl::UnavailableError("connection refused"); }
absl::Status Refused(Reason reason) {
  return ReasonedError(absl::StatusCode::kNotFound, reason, "refused");
}

class HomeSearchTest : public ::testing::Test {
 protected:
  class Connection final : public HomeConnection {
   public:
    Connection(HomeSearchTest* test, std::string address)
        : test_(test), address_(std::move(address)) {}

    bool ready() const override { return test_->ready_; }
    absl::Status Call(const char* method, const google::protobuf::MessageLite& request,
                      milliseconds timeout, const std::function<absl::Status()>& poll,
                      google::protobuf::MessageLite* reply) override {
      if (std::string(method) == method::kJobStatus) {
        *static_cast<v1::JobStatusReply*>(reply) = test_->home_;
        return absl::OkStatus();
      }
      test_->tried_.push_back(address_);
      test_->request_ = static_cast<const v1::AttachRequest&>(request);
      return test_->Answer(timeout, poll, static_cast<v1::AttachReply*>(reply));
    }

   private:
    HomeSearchTest* const test_;
    const std::string address_;
  };

  HomeSearchTest() {
    options_.job = "train";
    options_.endpoints = {"one:1", "two:1"};
    options_.attach_timeout = seconds(10);
    options_.on_pause = [this](const Pause& pause) { pauses_.push_back(pause); };
  }

  // The server's next answer; without one the call waits until its deadline.
  absl::Status Answer(milliseconds timeout, const std::function<absl::Status()>& poll,
                      v1::AttachReply* reply) {
    const milliseconds takes = answers_.empty() ? timeout : takes_;
    for (milliseconds waited{0}; waited < takes; waited += milliseconds(100)) {
      now_ += milliseconds(100);
      const absl::Status stopped = poll();
      if (!stopped.ok()) return stopped;
    }
    if (answers_.empty()) return absl::DeadlineExceededError("too late");
    const absl::Status answer = answers_.front();
    answers_.pop_front();
    if (answer.ok()) reply->set_job(77);
    return answer;
  }
  absl::StatusOr<v1::AttachReply> Attach() {
    HomeSearchDeps deps;
    deps.connect = [this](const std::string& address) {
      return std::make_unique<Connection>(this, address);
    };
    deps.explain = [this](const std::string&) { return explanation_; };
    deps.now = [this] { return std::chrono::steady_clock::time_point(now_); };
    deps.sleep = [this](milliseconds time) {
      now_ += time;
      slept_ += time;
    };
    return AttachToHome(options_, std::move(deps), v1::AttachRequest());
  }

  JobOptions options_;
  std::chrono::nanoseconds now_ = seconds(1000);
  milliseconds slept_{0};
  milliseconds takes_{0};  // an answer
  std::deque<absl::Status> answers_;
  bool ready_ = true;
  v1::JobStatusReply home_;
  std::string explanation_;
  std::vector<std::string> tried_;
  v1::AttachRequest request_;  // the newest
  std::vector<Pause> pauses_;
};

TEST_F(HomeSearchTest, AnotherServerNamesTheHome) {
  answers_ = {NotHome("home:1"), absl::OkStatus()};
  const absl::StatusOr<v1::AttachReply> reply = Attach();
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->job(), 77u);
  EXPECT_THAT(tried_, ElementsAre("one:1", "home:1"));
  EXPECT_EQ(request_.wait_timeout_ms(), 10'000u);
  EXPECT_EQ(slept_, milliseconds(0));
}

TEST_F(HomeSearchTest, ServersThatNameEachOtherAreACircle) {
  for (int i = 0; i < 10; ++i) answers_.push_back(NotHome("two:1"));
  EXPECT_EQ(ReasonOf(Attach().status()), Reason::kNotHome);
  EXPECT_THAT(tried_, ElementsAre("one:1", "two:1", "two:1", "two:1", "two:1"));
}

TEST_F(HomeSearchTest, ServersThatAreAwayAreAskedInTurnAndLessAndLessOften) {
  answers_ = {Away(), Away(), Away(), NotHome("two:1"), Away(), absl::OkStatus()};
  EXPECT_TRUE(Attach().ok());
  EXPECT_THAT(tried_, ElementsAre("one:1", "two:1", "one:1", "two:1", "two:1", "one:1"));
  EXPECT_EQ(slept_, milliseconds(100 + 200));
  EXPECT_EQ(request_.wait_timeout_ms(), 9'700u);
}

TEST_F(HomeSearchTest, ARefusalEndsTheSearchAtOnce) {
  answers_ = {Refused(Reason::kUnknownJob)};
  EXPECT_EQ(ReasonOf(Attach().status()), Reason::kUnknownJob);
  EXPECT_THAT(tried_, ElementsAre("one:1"));
}

TEST_F(HomeSearchTest, OnlyAnAttachThatMayResumeWaitsForAServerThatFollows) {
  answers_ = {Refused(Reason::kFutureEpoch)};
  EXPECT_EQ(ReasonOf(Attach().status()), Reason::kFutureEpoch);
  options_.durability = Durability::kPower;
  options_.resume = Resume::kAuto;
  answers_ = {Refused(Reason::kFutureEpoch), absl::OkStatus()};
  EXPECT_TRUE(Attach().ok());
}

TEST_F(HomeSearchTest, WithoutAnAnswerTheErrorNamesTheServersAndTheReason) {
  for (int i = 0; i < 100; ++i) answers_.push_back(Away());
  explanation_ = "its certificate has expired";
  const absl::Status status = Attach().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(status), Reason::kUnreachable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("one:1, two:1 within 10000 ms"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("its certificate has expired"));
  EXPECT_EQ(FieldsOf(status).job, "train");
}

TEST_F(HomeSearchTest, AHomeThatNeverAnswersIsAnAttachTimeout) {
  const absl::Status status = Attach().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ReasonOf(status), Reason::kAttachTimeout);
}

TEST_F(HomeSearchTest, AHomeThatWaitsForAPeerNamesIt) {
  home_.set_server(4);
  v1::ServerAddress* const away = home_.add_away();
  away->set_id(6);
  away->set_address("six:1");
  takes_ = seconds(9);
  answers_ = {absl::OkStatus()};
  EXPECT_TRUE(Attach().ok());
  ASSERT_EQ(pauses_.size(), 3u);
  EXPECT_EQ(pauses_[0].kind, Pause::Kind::kLost);
  EXPECT_EQ(pauses_[0].server, 6u);
  EXPECT_EQ(pauses_[0].address, "six:1");
  EXPECT_EQ(pauses_[1].kind, Pause::Kind::kWaiting);
  EXPECT_EQ(pauses_[2].kind, Pause::Kind::kBack);
}

TEST_F(HomeSearchTest, AConnectionThatBreaksIsAnOutageOfItsServer) {
  ready_ = false;
  takes_ = seconds(4);
  answers_ = {absl::OkStatus()};
  EXPECT_TRUE(Attach().ok());
  ASSERT_EQ(pauses_.size(), 2u);
  EXPECT_EQ(pauses_[0].kind, Pause::Kind::kLost);
  EXPECT_EQ(pauses_[0].server, kServerUnknown);
  EXPECT_EQ(pauses_[0].address, "one:1");
  EXPECT_EQ(pauses_[1].kind, Pause::Kind::kBack);
}

TEST_F(HomeSearchTest, ItsCallerMayStopIt) {
  options_.should_stop = [this] { return now_ > seconds(1002); };
  EXPECT_EQ(ReasonOf(Attach().status()), Reason::kClosed);
  EXPECT_EQ(now_, seconds(1002) + milliseconds(100));
}

}  // namespace
}  // namespace ballast::client
