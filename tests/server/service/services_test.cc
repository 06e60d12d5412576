// Unary services over a real connection: requests reach the directory, errors keep their reasons,
// and calls that end early are noticed.
#include <functional>

#include "common/base/reason.h"
#include "common/threads/thread_executor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/convert/job_convert.h"
#include "proto/convert/methods.h"
#include "server/rpc/generic_server.h"
#include "server/service/admin_service.h"
#include "server/service/control_service.h"
#include "server/stream/unary_call.h"
#include "tests/server/service/fakes.h"

namespace ballast::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ServerFacts FactsOfTest() {
  return {3,
          "0.1.0",
          "127.0.0.1:1",
          "avx2",
          {{4, "127.0.0.1:2", true}, {5, "127.0.0.1:3", false}},
          {{"data", false, 5, 10}},
          {},
          ""};
}

class ServicesTest : public testing::Test {
 protected:
  ServicesTest() {
    TransportTerms terms;
    terms.chunk_bytes = 1000;
    terms.credit_bytes = 5000;
    terms.heartbeat_ms = 500;
    terms.report_after_ms = 2500;
    const auto facts = [this] {
      ServerFacts now = FactsOfTest();
      now.instead = instead_;
      now.file_faults = {"denied:1:1: no identity"};
      return now;
    };
    AddControlMethods(&server_, &holder_, terms, facts, &metrics_);
    AddAdminMethods(&server_, &holder_, facts);
    AddReloadMethod(&server_, &executor_, [] {
      return std::vector<FileOutcome>{
          {"security.tokens_file", "/tokens", absl::OkStatus()},
          {"security.denied_file", "/denied", absl::InvalidArgumentError("denied:1:1: no")}};
    });
    EXPECT_TRUE(server_.Start({}).ok());
  }

  RawStream Open(const std::string& method) {
    return RawStream(absl::StrCat("127.0.0.1:", server_.port()), method);
  }
  static v1::AttachRequest Request() {
    v1::AttachRequest request;
    *request.mutable_protocol() = OwnProtocolRange();
    JobSpec spec;
    spec.name = "gpt";
    spec.world = 2;
    spec.tensors = {{"a", {3}, DType::kF32, 0, {}}};
    ballast::ToProto(spec, request.mutable_spec());
    request.set_slot(1);
    request.set_incarnation(9);
    request.set_init(v1::INIT_MODE_BROADCAST);
    return request;
  }
  // Sends one request and returns the status of the call.
  absl::Status Call(const std::string& method, const google::protobuf::MessageLite& request) {
    RawStream call = Open(method);
    call.Write(SerializeMessage(request));
    call.WritesDone();
    return call.Drain();
  }

  ServerMetrics metrics_{BuildInfo()};
  std::shared_ptr<FakeDirectory> directory_ = std::make_shared<FakeDirectory>();
  DirectoryHolder holder_{StillStarting({3, "127.0.0.1:1"}, "waits for its peers file")};
  std::string instead_;  // of serving, as the server says
  ThreadExecutor executor_{"test", 1};
  GenericServer server_;
};

TEST_F(ServicesTest, AnAttachIsAnsweredWithPlanAndTerms) {
  holder_.Set(directory_);
  RawStream call = Open(method::kAttach);
  ASSERT_TRUE(call.Write(SerializeMessage(Request())));
  call.WritesDone();
  ASSERT_TRUE(directory_->WaitUntil([](FakeDirectory& d) { return d.pending_.size() == 1; }));
  EXPECT_EQ(directory_->attaches_[0].spec.name, "gpt");
  EXPECT_EQ(directory_->attaches_[0].slot, 1u);
  AttachResult result;
  result.plan.job = 77;
  result.plan.owner = {3, 4};
  result.servers = {{3, "127.0.0.1:1"}, {4, "127.0.0.1:2"}};
  result.window_extents = 64;
  directory_->pending_[0](result);
  const auto reply = call.ReadReply<v1::AttachReply>();
  EXPECT_EQ(reply.job(), 77u);
  EXPECT_EQ(reply.plan().owner(1), 4u);
  EXPECT_EQ(reply.servers(1).address(), "127.0.0.1:2");
  EXPECT_EQ(reply.chunk_bytes(), 1000u);
  EXPECT_EQ(reply.credit_bytes(), 5000u);
  EXPECT_EQ(reply.window_extents(), 64u);
  EXPECT_EQ(reply.heartbeat_ms(), 500u);
  EXPECT_EQ(reply.report_after_ms(), 2500u);
  EXPECT_EQ(reply.protocol(), kProtocolMax);
  EXPECT_TRUE(call.Drain().ok());
  EXPECT_TRUE(directory_->cancelled_.empty());
}

TEST_F(ServicesTest, TheDirectorysErrorKeepsItsReasonAndFields) {
  holder_.Set(directory_);
  RawStream call = Open(method::kAttach);
  ASSERT_TRUE(call.Write(SerializeMessage(Request())));
  ASSERT_TRUE(directory_->WaitUntil([](FakeDirectory& d) { return d.pending_.size() == 1; }));
  ErrorFields fields;
  fields.address = "127.0.0.1:9";
  directory_->pending_[0](ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kNotHome,
                                        "ask server 0", fields));
  const absl::Status status = call.Drain();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(status), Reason::kNotHome);
  EXPECT_EQ(FieldsOf(status).address, "127.0.0.1:9");
  EXPECT_EQ(metrics_.admissions_refused("NOT_HOME")->value(), 1u);
}

TEST_F(ServicesTest, ARefusedAttachStandsInTheLogWithJobReasonAndPeer) {
  holder_.Set(directory_);
  RawStream call = Open(method::kAttach);
  ASSERT_TRUE(call.Write(SerializeMessage(Request())));
  ASSERT_TRUE(directory_->WaitUntil([](FakeDirectory& d) { return d.pending_.size() == 1; }));
  testing::internal::CaptureStderr();
  directory_->pending_[0](
      ReasonedError(absl::StatusCode::kResourceExhausted, Reason::kOverBudget, "needs 5 of 3"));
  EXPECT_FALSE(call.Drain().ok());
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("refused to attach: needs 5 of 3 run=\"gpt\" reason=\"OVER_BUDGET\" "
                             "peer=\"ipv4:127.0.0.1:"));
}

TEST_F(ServicesTest, BeforeThePeersAreKnownAnAttachSaysWhatIsAwaited) {
  const absl::Status status = Call(method::kAttach, Request());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("server 3 waits for its peers file"));
  EXPECT_EQ(metrics_.admissions_refused(ReasonName(ReasonOf(status)))->value(), 1u);
}

TEST_F(ServicesTest, ACallerThatHangsUpIsReported) {
  holder_.Set(directory_);
  RawStream call = Open(method::kAttach);
  ASSERT_TRUE(call.Write(SerializeMessage(Request())));
  ASSERT_TRUE(directory_->WaitUntil([](FakeDirectory& d) { return d.pending_.size() == 1; }));
  call.Cancel();
  ASSERT_TRUE(directory_->WaitUntil([](FakeDirectory& d) { return !d.cancelled_.empty(); }));
  EXPECT_EQ(directory_->cancelled_[0], absl::StrCat("gpt/1/", directory_->attaches_.back().call));
  directory_->pending_[0](AttachResult());  // Too late: no answer, no crash.
}

TEST_F(ServicesTest, BadRequestsAreNamedAndNeverReachTheDirectory) {
  holder_.Set(directory_);
  v1::AttachRequest request = Request();
  request.mutable_protocol()->set_min(9);
  request.mutable_protocol()->set_max(9);
  EXPECT_EQ(ReasonOf(Call(method::kAttach, request)), Reason::kProtocolMismatch);
  request = Request();
  request.mutable_spec()->mutable_tensors(0)->clear_dtype();
  EXPECT_EQ(ReasonOf(Call(method::kAttach, request)), Reason::kBadSpec);
  RawStream garbage = Open(method::kAttach);
  const grpc::Slice slice("\xff\xff\xff");
  garbage.Write(grpc::ByteBuffer(&slice, 1));
  EXPECT_EQ(ReasonOf(garbage.Drain()), Reason::kBadFrame);
  RawStream nothing = Open(method::kAttach);
  nothing.WritesDone();
  EXPECT_EQ(ReasonOf(nothing.Drain()), Reason::kBadFrame);
  EXPECT_TRUE(directory_->attaches_.empty());
}

TEST_F(ServicesTest, AnUnknownMethodIsUnimplemented) {
  EXPECT_EQ(Call("/ballast.v1.Control/Explode", Request()).code(),
            absl::StatusCode::kUnimplemented);
}

TEST_F(ServicesTest, ARendezvousReachesTheHomeAndIsAnswered) {
  holder_.Set(directory_);
  v1::RendezvousRequest request;
  request.set_act(v1::RENDEZVOUS_ACT_EXCHANGE);
  request.set_tag("main");
  request.set_id("id");
  request.mutable_doing()->set_phase(v1::COLLECTIVE_PHASE_PULL);
  request.mutable_doing()->set_round(7);
  RawStream call = Open(method::kRendezvous);
  call.Write(SerializeMessage(request));
  call.WritesDone();
  const auto reply = call.ReadReply<v1::RendezvousReply>();
  EXPECT_TRUE(reply.over());
  EXPECT_EQ(reply.id(), "id/main");
  ASSERT_EQ(reply.ranks_size(), 1);
  EXPECT_EQ(reply.ranks(0).slot(), 3u);
  EXPECT_EQ(reply.ranks(0).ago_ms(), 2000u);
  EXPECT_EQ(reply.ranks(0).doing().phase(), v1::COLLECTIVE_PHASE_PULL);
  EXPECT_EQ(reply.ranks(0).doing().round(), 7u);
}

TEST_F(ServicesTest, ARendezvousWithAnUnknownActOrPhaseGoesNoFurther) {
  holder_.Set(directory_);
  v1::RendezvousRequest request;
  absl::Status status = Call(method::kRendezvous, request);
  EXPECT_EQ(ReasonOf(status), Reason::kBadFrame);
  EXPECT_THAT(status.message(), HasSubstr("rendezvous act number 0"));
  request.set_act(v1::RENDEZVOUS_ACT_READY);
  request.mutable_doing()->set_phase(static_cast<v1::CollectivePhase>(7));
  status = Call(method::kRendezvous, request);
  EXPECT_THAT(status.message(), HasSubstr("collective phase number 7"));
}

TEST_F(ServicesTest, AnExtendIsAnswered) {
  holder_.Set(directory_);
  v1::ExtendRequest request;
  request.set_base_layout_version(4);
  request.set_init(v1::INIT_MODE_BROADCAST);
  RawStream call = Open(method::kExtend);
  ASSERT_TRUE(call.Write(SerializeMessage(request)));
  const auto reply = call.ReadReply<v1::ExtendReply>();
  EXPECT_EQ(reply.layout_version(), 5u);
}

TEST_F(ServicesTest, StatusTellsServerPeersAndJobs) {
  for (const bool serving : {false, true}) {
    if (serving) holder_.Set(directory_);
    RawStream call = Open(method::kAdminStatus);
    ASSERT_TRUE(call.Write(SerializeMessage(v1::StatusRequest())));
    const auto reply = call.ReadReply<v1::StatusReply>();
    EXPECT_EQ(reply.id(), 3u);
    EXPECT_EQ(reply.isa(), "avx2");
    EXPECT_TRUE(reply.peers(0).reachable());
    EXPECT_EQ(reply.disks(0).ShortDebugString(),
              "directory: \"data\" free_bytes: 5 size_bytes: 10");
    EXPECT_THAT(reply.file_faults(), ElementsAre("denied:1:1: no identity"));
    EXPECT_EQ(reply.serving(), serving);
    EXPECT_EQ(reply.jobs_size(), serving ? 1 : 0);
    if (serving) {
      EXPECT_EQ(reply.jobs(0).slots(0).first_owed(), 42u);
    }
    EXPECT_TRUE(call.Drain().ok());
  }
}

TEST_F(ServicesTest, AServerThatEndsServesNoMoreAndStillHasItsJobs) {
  instead_ = "ending";
  holder_.Set(directory_);
  RawStream call = Open(method::kAdminStatus);
  ASSERT_TRUE(call.Write(SerializeMessage(v1::StatusRequest())));
  const auto reply = call.ReadReply<v1::StatusReply>();
  EXPECT_FALSE(reply.serving());
  EXPECT_EQ(reply.instead(), "ending");
  EXPECT_EQ(reply.jobs_size(), 1);
}

TEST_F(ServicesTest, AReloadNamesEachFileAndWhyOneIsNotInForce) {
  RawStream call = Open(method::kAdminReload);  // Before there is a directory.
  ASSERT_TRUE(call.Write(SerializeMessage(v1::ReloadRequest())));
  const auto reply = call.ReadReply<v1::ReloadReply>();
  ASSERT_EQ(reply.files_size(), 2);
  EXPECT_EQ(reply.files(0).ShortDebugString(),
            "setting: \"security.tokens_file\" path: \"/tokens\"");
  EXPECT_EQ(reply.files(1).ShortDebugString(),
            "setting: \"security.denied_file\" path: \"/denied\" error: \"denied:1:1: no\"");
}

TEST_F(ServicesTest, TenantsAreToldWithWhatTheyUseAndMayUse) {
  holder_.Set(directory_);
  RawStream call = Open(method::kAdminListTenants);
  ASSERT_TRUE(call.Write(SerializeMessage(v1::ListTenantsRequest())));
  const auto reply = call.ReadReply<v1::ListTenantsReply>();
  ASSERT_EQ(reply.tenants_size(), 2);
  EXPECT_EQ(reply.tenants(0).tenant(), "acme");
  ASSERT_EQ(reply.tenants(0).resources_size(), 6);
  EXPECT_EQ(reply.tenants(0).resources(0).ShortDebugString(),
            "resource: \"jobs\" used: 3 allowed: 4");
  EXPECT_EQ(reply.tenants(0).resources(3).ShortDebugString(),
            "resource: \"disk\" used: 4096 bytes: true");
}

TEST_F(ServicesTest, ATrainerLearnsOfItsOwnJobAndOfServersThatAreAway) {
  v1::JobStatusRequest request;
  request.set_job("fake");
  for (const bool serving : {false, true}) {
    if (serving) holder_.Set(directory_);
    RawStream call = Open(method::kJobStatus);
    ASSERT_TRUE(call.Write(SerializeMessage(request)));
    const auto reply = call.ReadReply<v1::JobStatusReply>();
    EXPECT_EQ(reply.server(), 3u);
    ASSERT_EQ(reply.away_size(), 1);
    EXPECT_EQ(reply.away(0).id(), 5u);
    EXPECT_EQ(reply.away(0).address(), "127.0.0.1:3");
    EXPECT_EQ(reply.state(), serving ? "attaching" : "");
    EXPECT_EQ(reply.missing_size(), serving ? 1 : 0);
    EXPECT_TRUE(call.Drain().ok());
  }
  request.set_job("another");
  RawStream call = Open(method::kJobStatus);
  ASSERT_TRUE(call.Write(SerializeMessage(request)));
  EXPECT_EQ(call.ReadReply<v1::JobStatusReply>().state(), "");
}

TEST_F(ServicesTest, AServerStopsWithCallsOpen) {
  holder_.Set(directory_);
  RawStream call = Open(method::kAttach);
  ASSERT_TRUE(call.Write(SerializeMessage(Request())));
  ASSERT_TRUE(directory_->WaitUntil([](FakeDirectory& d) { return d.pending_.size() == 1; }));
  server_.Shutdown(std::chrono::milliseconds(0));
  EXPECT_FALSE(call.Drain().ok());
  directory_->pending_[0](AttachResult());  // The call object outlives the server.
}

// Keeps its call open and reads nothing of it.
class NeverReads : public StreamHandler {
 public:
  explicit NeverReads(std::shared_ptr<MessageStream> call) : call_(std::move(call)) {}
  void OnMessage(Payload) override {}
  void OnReadsDone() override {}
  std::optional<Outgoing> NextMessage() override { return std::nullopt; }
  void OnDone(bool) override {}

 private:
  const std::shared_ptr<MessageStream> call_;
};

// Streams of 48 KiB messages that a server reads none of, to see what becomes of gRPC's memory.
class RpcMemoryTest : public testing::Test {
 protected:
  void Serve(uint64_t rpc_memory_bytes) {
    server_.AddMethod(method::kExchange, [](std::shared_ptr<MessageStream> call) {
      return std::make_shared<NeverReads>(std::move(call));
    });
    server_.AddMethod(method::kPeerHello, UnaryCall::Factory([](const auto& call, const auto&) {
                        call->Reply(v1::PeerAck());
                      }));
    GenericServerOptions options;
    options.rpc_memory_bytes = rpc_memory_bytes;
    ASSERT_TRUE(server_.Start(options).ok());
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", server_.port()); }
  // Writes until nothing more goes out; how the stream has ended then. Alone, it waits for its
  // deadline.
  absl::StatusCode Fill() {
    RawStream stream(MakeChannel(address(), 1), method::kExchange, "", std::chrono::seconds(1));
    const grpc::Slice slice(std::string(48 << 10, 'x'));
    while (stream.Write(grpc::ByteBuffer(&slice, 1))) {
    }
    return stream.Finish().code();
  }
  bool HelloIsAnswered() {
    RawStream call(address(), method::kPeerHello);
    call.Write(SerializeMessage(v1::PeerAck()));
    call.WritesDone();
    return call.Drain().ok();
  }
  static bool Within(const std::function<bool()>& condition) {
    const auto end = std::chrono::steady_clock::now() + kTestDeadline;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
    }
    return true;
  }

  GenericServer server_;
};

TEST_F(RpcMemoryTest, WithoutABoundAStreamThatIsNotReadWaits) {
  Serve(0);
  EXPECT_EQ(Fill(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(HelloIsAnswered());
}

TEST_F(RpcMemoryTest, BeyondTheBoundAStreamBreaksAndTheNextClientIsServed) {
  Serve(64 << 10);
  const auto broken = [this] { return Fill() == absl::StatusCode::kUnavailable; };
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Within(broken)) << i;
  EXPECT_TRUE(Within([this] { return HelloIsAnswered(); }));
  server_.Shutdown(std::chrono::milliseconds(0));
}

TEST(GenericServerTest, AnAddressInUseIsNamed) {
  GenericServer first;
  ASSERT_TRUE(first.Start({}).ok());
  GenericServerOptions options;
  options.address = absl::StrCat("127.0.0.1:", first.port());
  GenericServer second;
  const absl::Status status = second.Start(options);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr(options.address));
}

}  // namespace
}  // namespace ballast::server
