// Which of several servers ballastctl asks.
#include "tools/ctl/admin_call.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "ballast/v1/admin.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/convert/methods.h"
#include "server/rpc/generic_server.h"
#include "server/stream/unary_call.h"

namespace ballast::tools {
namespace {

using testing::HasSubstr;
using testing::Not;

// Answers Status only.
class StatusServer {
 public:
  explicit StatusServer(bool serving) {
    server_.AddMethod(method::kAdminStatus, server::UnaryCall::Factory([=](auto call, const auto&) {
                        v1::StatusReply reply;
                        reply.set_serving(serving);
                        call->Reply(reply);
                      }));
    EXPECT_TRUE(server_.Start({}).ok());
  }
  ~StatusServer() { Stop(); }
  std::string endpoint() const { return absl::StrCat("127.0.0.1:", server_.port()); }
  void Stop() { server_.Shutdown(std::chrono::milliseconds(0)); }

 private:
  server::GenericServer server_;
};

class FirstThatServesTest : public testing::Test {
 protected:
  FirstThatServesTest() { dead_.Stop(); }

  std::string Choose(const std::vector<std::string>& endpoints) {
    Options options;
    options.endpoints = endpoints;
    testing::internal::CaptureStderr();
    std::string chosen = FirstThatServes(options);
    said_ = testing::internal::GetCapturedStderr();
    return chosen;
  }

  StatusServer dead_{true};
  StatusServer starts_{false};
  StatusServer serves_{true};
  std::string said_;
};

TEST_F(FirstThatServesTest, AServerThatDoesNotAnswerIsPassedOverAndNamed) {
  EXPECT_EQ(Choose({dead_.endpoint(), serves_.endpoint()}), serves_.endpoint());
  EXPECT_THAT(said_, HasSubstr(absl::StrCat("cannot reach ", dead_.endpoint())));
}

TEST_F(FirstThatServesTest, OneThatStartsIsTakenOnlyWhereNoOtherServes) {
  EXPECT_EQ(Choose({starts_.endpoint(), serves_.endpoint()}), serves_.endpoint());
  EXPECT_EQ(Choose({dead_.endpoint(), starts_.endpoint()}), starts_.endpoint());
  EXPECT_EQ(Choose({serves_.endpoint(), dead_.endpoint()}), serves_.endpoint());
  EXPECT_EQ(said_, "");
}

TEST_F(FirstThatServesTest, WhereNoneAnswersTheFirstIsAskedAndSaysSoItself) {
  StatusServer other(true);
  other.Stop();
  EXPECT_EQ(Choose({dead_.endpoint(), other.endpoint()}), dead_.endpoint());
  EXPECT_THAT(said_, HasSubstr(other.endpoint()));
  EXPECT_THAT(said_, Not(HasSubstr(dead_.endpoint())));
  EXPECT_EQ(Choose({dead_.endpoint()}), dead_.endpoint());
  EXPECT_EQ(said_, "");
}

}  // namespace
}  // namespace ballast::tools
