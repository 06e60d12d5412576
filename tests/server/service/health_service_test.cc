// grpc.health.v1 over a real connection: by service, before, while and after jobs are served.
#include "server/service/health_service.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/convert/methods.h"
#include "server/rpc/generic_server.h"
#include "tests/server/service/fakes.h"

namespace ballast::server {
namespace {

using Response = v1::HealthCheckResponse;

class HealthTest : public testing::Test {
 protected:
  HealthTest() {
    AddHealthMethods(&server_, &health_);
    EXPECT_TRUE(server_.Start({}).ok());
  }

  RawStream Open(const char* method) {
    return RawStream(absl::StrCat("127.0.0.1:", server_.port()), method);
  }
  static grpc::ByteBuffer Request(const std::string& service) {
    v1::HealthCheckRequest request;
    request.set_service(service);
    return SerializeMessage(request);
  }
  static Response::ServingStatus Next(RawStream* call) {
    return call->ReadReply<Response>().status();
  }
  Response::ServingStatus Check(const std::string& service) {
    RawStream call = Open(method::kHealthCheck);
    call.Write(Request(service));
    const Response::ServingStatus status = Next(&call);
    EXPECT_TRUE(call.Drain().ok());
    return status;
  }

  Health health_;
  GenericServer server_;
};

TEST_F(HealthTest, CheckSaysOfEachServiceWhetherJobsAreServed) {
  const auto expect = [this](Response::ServingStatus status) {
    for (const char* service :
         {"", "ballast.v1.Admin", "ballast.v1.Control", "ballast.v1.Data", "ballast.v1.Peer"}) {
      EXPECT_EQ(Check(service), status) << service;
    }
  };
  expect(Response::NOT_SERVING);
  health_.Serve();
  expect(Response::SERVING);
  health_.End();
  health_.Serve();  // Too late.
  expect(Response::NOT_SERVING);
}

TEST_F(HealthTest, AServiceThatIsNotHereIsNotFound) {
  RawStream call = Open(method::kHealthCheck);
  call.Write(Request("ballast.v1.Dat"));
  const absl::Status status = call.Drain();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(), testing::HasSubstr("ballast.v1.Data"));
}

TEST_F(HealthTest, AWatchHearsEachChangeAndEndsWithTheServer) {
  RawStream watch = Open(method::kHealthWatch);
  watch.Write(Request("ballast.v1.Data"));
  watch.WritesDone();
  EXPECT_EQ(Next(&watch), Response::NOT_SERVING);
  health_.Serve();
  EXPECT_EQ(Next(&watch), Response::SERVING);
  health_.End();
  EXPECT_EQ(Next(&watch), Response::NOT_SERVING);
  const absl::Status status = watch.Drain();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(status), Reason::kShuttingDown);
}

TEST_F(HealthTest, AWatchOfAnUnknownServiceSaysSoAndStays) {
  RawStream watch = Open(method::kHealthWatch);
  watch.Write(Request("x"));
  EXPECT_EQ(Next(&watch), Response::SERVICE_UNKNOWN);
  health_.Serve();
  health_.End();
  EXPECT_EQ(watch.Drain().code(), absl::StatusCode::kUnavailable);
}

TEST_F(HealthTest, AWatchThatAsksNothingIsRefused) {
  RawStream watch = Open(method::kHealthWatch);
  watch.WritesDone();
  EXPECT_EQ(ReasonOf(watch.Drain()), Reason::kBadFrame);
}

// The bytes that gRPC's own clients send and read: field 1 of both messages.
TEST(HealthMessagesTest, TheirBytesAreThoseOfTheStandard) {
  v1::HealthCheckRequest request;
  request.set_service("a");
  EXPECT_EQ(request.SerializeAsString(), std::string("\x0a\x01"
                                                     "a"));
  Response response;
  response.set_status(Response::NOT_SERVING);
  EXPECT_EQ(response.SerializeAsString(), std::string("\x08\x02"));
}

}  // namespace
}  // namespace ballast::server
