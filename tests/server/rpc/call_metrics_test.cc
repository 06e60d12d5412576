// What gRPC's metrics say of calls over a real connection: begun, ended with which status, how
// long.
#include <cstdint>
#include <optional>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "ballast/v1/peer.pb.h"
#include "gtest/gtest.h"
#include "server/rpc/generic_server.h"
#include "server/stream/unary_call.h"
#include "tests/server/service/fakes.h"

namespace ballast::server {
namespace {

// Methods that a server may have; this test implements them.
constexpr char kAnswers[] = "/ballast.v1.Peer/Hello";
constexpr char kRefuses[] = "/ballast.v1.Peer/CreateJob";
constexpr char kWaits[] = "/ballast.v1.Peer/Seal";

class CallMetricsTest : public testing::Test {
 protected:
  CallMetricsTest() {
    using Call = std::shared_ptr<UnaryCall>;
    server_.AddMethod(kAnswers, UnaryCall::Factory([](const Call& call, const auto&) {
                        call->Reply(v1::PeerAck());
                      }));
    server_.AddMethod(kRefuses, UnaryCall::Factory([](const Call& call, const auto&) {
                        call->Fail(absl::ResourceExhaustedError("no room"));
                      }));
    server_.AddMethod(kWaits, UnaryCall::Factory([this](const Call& call, const auto&) {
                        MutexLock lock(&mu_);
                        waiting_ = call;
                      }),
                      MethodType::kBidiStream);
    GenericServerOptions options;
    options.metrics = &metrics_;
    EXPECT_TRUE(server_.Start(options).ok());
  }

  std::string address() const { return absl::StrCat("127.0.0.1:", server_.port()); }
  void Call(const std::string& method) {
    RawStream call(address(), method);
    call.Write(SerializeMessage(v1::PeerAck()));
    call.Drain().IgnoreError();
  }
  static MetricLabels Labels(const std::string& method, const std::string& type = "unary") {
    return {{"grpc_type", type}, {"grpc_service", "ballast.v1.Peer"}, {"grpc_method", method}};
  }
  static MetricLabels With(MetricLabels labels, const std::string& code) {
    labels.emplace_back("grpc_code", code);
    return labels;
  }
  std::optional<MetricSample> Find(const std::string& family, const MetricLabels& labels) const {
    for (const MetricFamily& candidate : metrics_.registry().Collect()) {
      for (const MetricSample& sample : candidate.samples) {
        if (candidate.name == family && sample.labels == labels) return sample;
      }
    }
    return std::nullopt;
  }
  // A client knows of an end before the server has counted it.
  double WaitForEnd(const MetricLabels& labels) const {
    const auto deadline = std::chrono::steady_clock::now() + kTestDeadline;
    while (std::chrono::steady_clock::now() < deadline) {
      const auto sample = Find("grpc_server_handled_total", labels);
      if (sample.has_value() && sample->value > 0) return sample->value;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return 0;
  }

  ServerMetrics metrics_{BuildInfo{"0.1.0", "", "scalar"}};
  Mutex mu_;
  std::shared_ptr<UnaryCall> waiting_ ABSL_GUARDED_BY(mu_);
  GenericServer server_;
};

TEST_F(CallMetricsTest, AnAnsweredCallIsBegunAndEndsWithOk) {
  EXPECT_EQ(Find("grpc_server_started_total", Labels("Hello"))->value, 0);
  EXPECT_EQ(Find("grpc_server_handled_total", With(Labels("Hello"), "OK"))->value, 0);
  Call(kAnswers);
  EXPECT_EQ(WaitForEnd(With(Labels("Hello"), "OK")), 1);
  EXPECT_EQ(Find("grpc_server_started_total", Labels("Hello"))->value, 1);
  EXPECT_EQ(Find("grpc_server_handling_seconds", Labels("Hello"))->histogram.count, 1u);
  EXPECT_EQ(Find("grpc_server_started_total", Labels("CreateJob"))->value, 0);
}

TEST_F(CallMetricsTest, ARefusedCallEndsWithItsCode) {
  Call(kRefuses);
  EXPECT_EQ(WaitForEnd(With(Labels("CreateJob"), "ResourceExhausted")), 1);
  EXPECT_EQ(Find("grpc_server_handled_total", With(Labels("CreateJob"), "OK"))->value, 0);
}

TEST_F(CallMetricsTest, ACallThatTheClientBreaksOffIsCanceled) {
  RawStream call(address(), kWaits);
  ASSERT_TRUE(call.Write(SerializeMessage(v1::PeerAck())));
  call.Cancel();
  call.Drain().IgnoreError();
  EXPECT_EQ(WaitForEnd(With(Labels("Seal", "bidi_stream"), "Canceled")), 1);
}

TEST_F(CallMetricsTest, MethodsThatAreNotThereShareOneValue) {
  const MetricLabels unknown = {
      {"grpc_type", "unknown"}, {"grpc_service", "unknown"}, {"grpc_method", "unknown"}};
  Call("/ballast.v1.Test/One");
  Call("/made.up/Two");
  EXPECT_GE(WaitForEnd(With(unknown, "Unimplemented")), 1);
  EXPECT_EQ(Find("grpc_server_started_total", unknown)->value, 2);
  for (const MetricFamily& family : metrics_.registry().Collect()) {
    for (const MetricSample& sample : family.samples) {
      for (const auto& [name, value] : sample.labels) EXPECT_NE(value, "made.up") << family.name;
    }
  }
}

}  // namespace
}  // namespace ballast::server
