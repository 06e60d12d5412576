// An operator's calls against servers with answers set by the test.
#include "ballast/admin.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ballast/v1/admin.pb.h"
#include "proto/convert/channel.h"
#include "proto/convert/grpc_status.h"
#include "proto/convert/methods.h"
#include "proto/convert/status_convert.h"
#include "tests/client/cpp/transport/fake_stream.h"
#include "tests/proto/convert/grpc_frames.h"

namespace ballast::client {
namespace {

// A server; `answer` fills the reply's bytes, or says why not. Counts its calls.
class AnsweringServer : public grpc::CallbackGenericService {
 public:
  using Answer = std::function<absl::Status(const std::string& method, const grpc::ByteBuffer&,
                                            grpc::ByteBuffer* reply)>;

  explicit AnsweringServer(Answer answer) : answer_(std::move(answer)) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", MakeServerCredentials(), &port);
    builder.RegisterCallbackGenericService(this);
    server_ = builder.BuildAndStart();
    address_ = "127.0.0.1:" + std::to_string(port);
  }
  ~AnsweringServer() override { server_->Shutdown(std::chrono::system_clock::now()); }

  const std::string& address() const { return address_; }
  int calls() {
    std::lock_guard<std::mutex> lock(mu_);
    return calls_;
  }

 private:
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    const std::string method = context->method();
    auto receive = [this, method](FakeStream* call, const grpc::ByteBuffer& bytes) {
      std::lock_guard<std::mutex> lock(mu_);
      ++calls_;
      grpc::ByteBuffer reply;
      const absl::Status status = answer_(method, bytes, &reply);
      if (status.ok()) call->Send(reply);
      call->End(ToGrpc(status));
    };
    return new FakeStream(receive, [](FakeStream*) {});
  }

  const Answer answer_;
  std::mutex mu_;
  int calls_ = 0;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

AnsweringServer::Answer Always(const absl::Status& status) {
  return
      [status](const std::string&, const grpc::ByteBuffer&, grpc::ByteBuffer*) { return status; };
}

AdminOptions Options(std::vector<std::string> endpoints, int patience_ms) {
  AdminOptions options;
  options.endpoints = std::move(endpoints);
  options.patience = std::chrono::milliseconds(patience_ms);
  return options;
}

TEST(Admin, AsksTheHomeThatAnotherServerNames) {
  AnsweringServer home(
      [](const std::string& method, const grpc::ByteBuffer& bytes, grpc::ByteBuffer* answer) {
        EXPECT_EQ(method, method::kAdminRestoreSnapshot);
        v1::RestoreSnapshotRequest request;
        EXPECT_TRUE(ParseMessage(bytes, 1 << 20, &request).ok());
        EXPECT_EQ(request.job() + "/" + request.name() + "/" + request.as(), "run/best/new");
        EXPECT_EQ(request.world(), 3);
        EXPECT_TRUE(request.share());
        v1::RestoreSnapshotReply reply;
        reply.mutable_job()->set_name("new");
        reply.mutable_job()->set_state("resting");
        reply.mutable_job()->set_world(3);
        reply.mutable_job()->set_round(8);
        *answer = SerializeMessage(reply);
        return absl::OkStatus();
      });
  AnsweringServer other(
      Always(ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kNotHome, "ask the home",
                           {.server = 0, .address = home.address()})));
  const absl::StatusOr<DurableJob> made =
      Admin(Options({other.address()}, 0)).Restore({"run", "best", "new", 3, true});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->name, "new");
  EXPECT_EQ(made->state, "resting");
  EXPECT_EQ(made->world, 3);
  EXPECT_EQ(made->round, 8);
}

TEST(Admin, AsksAgainWhileServersStart) {
  int tries = 0;
  AnsweringServer server(
      [&tries](const std::string&, const grpc::ByteBuffer&, grpc::ByteBuffer* answer) {
        if (++tries < 3) {
          return ReasonedError(absl::StatusCode::kUnavailable, Reason::kRecovering, "starts");
        }
        v1::ListSnapshotsReply reply;
        reply.add_snapshots()->set_name("best");
        *answer = SerializeMessage(reply);
        return absl::OkStatus();
      });
  const auto snapshots = Admin(Options({server.address()}, 600'000)).Snapshots("run");
  ASSERT_TRUE(snapshots.ok()) << snapshots.status();
  ASSERT_EQ(snapshots->size(), 1);
  EXPECT_EQ(snapshots->front().name, "best");
}

TEST(Admin, ReturnsAServersErrorAtOnceWithItsReason) {
  AnsweringServer server(Always(ReasonedError(absl::StatusCode::kFailedPrecondition,
                                              Reason::kJobBusy, "2 of 2 trainers are attached")));
  const absl::Status status = Admin(Options({server.address()}, 600'000)).DeleteJob("run", false);
  EXPECT_EQ(GetErrorInfo(status).reason_name, "JOB_BUSY");
  EXPECT_EQ(status.message(), "2 of 2 trainers are attached");
  EXPECT_EQ(server.calls(), 1);
}

TEST(Admin, SaysWhereNoServerAnswered) {
  const absl::Status status = Admin(Options({"127.0.0.1:1", "127.0.0.1:2"}, 0)).Jobs().status();
  EXPECT_EQ(GetErrorInfo(status).reason_name, "UNREACHABLE");
  EXPECT_NE(status.message().find("no state server answered at 127.0.0.1:1, 127.0.0.1:2"),
            absl::string_view::npos)
      << status;
  EXPECT_EQ(GetErrorInfo(Admin(Options({}, 0)).Jobs().status()).reason_name, "BAD_ARGUMENT");
}

TEST(Admin, EndsWhenItsCallerSaysSo) {
  AdminOptions options = Options({"127.0.0.1:1"}, 600'000);
  int asked = 0;
  options.should_stop = [&asked] { return ++asked > 3; };
  const absl::Status status = Admin(options).DeleteSnapshot("run", "best");
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
}

TEST(Admin, FollowsServersThatNameEachOtherForAWhileOnly) {
  std::string other;
  AnsweringServer server([&other](const std::string&, const grpc::ByteBuffer&, grpc::ByteBuffer*) {
    return ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kNotHome, "ask the home",
                         {.server = 0, .address = other});
  });
  other = server.address();
  EXPECT_EQ(GetErrorInfo(Admin(Options({other}, 0)).Jobs().status()).reason_name, "NOT_HOME");
}

}  // namespace
}  // namespace ballast::client
