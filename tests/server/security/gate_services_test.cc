// The gate before a server's services, over real TLS: every method of the service descriptors,
// called by every kind of caller. Each call sends a message that no method can parse, so that the
// answer tells whether the message was read.
#include <map>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "common/threads/thread_executor.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "proto/convert/job_convert.h"
#include "proto/convert/methods.h"
#include "server/rpc/generic_server.h"
#include "server/service/admin_service.h"
#include "server/service/control_service.h"
#include "server/service/health_service.h"
#include "server/service/peer_service.h"
#include "server/service/trainer_stream.h"
#include "tests/server/security/test_ca.h"
#include "tests/server/service/fakes.h"

namespace ballast::server {
namespace {

using testing::HasSubstr;

// Every method of the services in proto/ballast/v1, by its path.
std::vector<std::string> MethodsOfDescriptors() {
  std::vector<std::string> methods;
  for (const absl::string_view file : absl::StrSplit(BALLAST_PROTO_FILES, ',')) {
    const auto* const descriptor =
        google::protobuf::DescriptorPool::generated_pool()->FindFileByName(std::string(file));
    if (descriptor == nullptr) {
      ADD_FAILURE() << file << " is not linked into this test";
      continue;
    }
    for (int s = 0; s < descriptor->service_count(); ++s) {
      const auto* const service = descriptor->service(s);
      for (int m = 0; m < service->method_count(); ++m) {
        methods.push_back(absl::StrCat("/", service->full_name(), "/", service->method(m)->name()));
      }
    }
  }
  return methods;
}

TEST(MethodTableTest, EveryMethodOfTheDescriptorsHasARowAndNoRowIsOfNone) {
  std::vector<std::string> methods = MethodsOfDescriptors();
  EXPECT_GE(methods.size(), 25u);
  // The service of gRPC's own; its messages alone are in proto/ballast/v1.
  methods.insert(methods.end(), {method::kHealthCheck, method::kHealthWatch});
  for (const std::string& method : methods) EXPECT_NE(FindMethod(method), nullptr) << method;
  for (const MethodRow& row : MethodTable()) {
    EXPECT_THAT(methods, testing::Contains(std::string(row.method)));
  }
}

TEST(MethodTableTest, AServerDoesNotStartWithAMethodThatHasNoRow) {
  GenericServer server;
  server.AddMethod("/ballast.v1.Admin/Forgotten",
                   [](std::shared_ptr<MessageStream>) { return std::shared_ptr<StreamHandler>(); });
  const absl::Status status = server.Start({});
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/ballast.v1.Admin/Forgotten"));
}

std::string Uri(const std::string& path) { return absl::StrCat("spiffe://test/", path); }

class GateServicesTest : public testing::Test {
 protected:
  GateServicesTest() {
    holder_.Set(directory_);
    gate_.SetServers(1, {0, 1, 2});
    AddControlMethods(
        &server_, &holder_, {}, [] { return ServerFacts(); }, &metrics_);
    AddPeerMethods(&server_, &holder_, {1, 9, &gate_});
    AddAdminMethods(&server_, &holder_, [] { return ServerFacts(); });
    AddReloadMethod(&server_, &executor_, [] { return std::vector<FileOutcome>(); });
    AddHealthMethods(&server_, &health_);
    stream_deps_.directory = &holder_;
    stream_deps_.executor = &executor_;
    stream_deps_.clock = &clock_;
    stream_deps_.gate = &gate_;
    stream_deps_.config.report_after = std::chrono::milliseconds(10);
    server_.AddMethod(method::kExchange, TrainerStream::Factory(&stream_deps_),
                      MethodType::kBidiStream);
    GenericServerOptions options;
    options.gate = &gate_;
    options.audit = &audit_;
    options.credentials = ca_.ServerCredentials(/*needed=*/false);
    const absl::Status started = server_.Start(options);
    EXPECT_TRUE(started.ok()) << started;
  }
  ~GateServicesTest() override {
    server_.Shutdown(std::chrono::milliseconds(0));
    executor_.Shutdown();
  }

  using Channel = std::shared_ptr<grpc::Channel>;
  Channel Connect(const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
    return grpc::CreateChannel(absl::StrCat("127.0.0.1:", server_.port()), credentials);
  }
  Channel Nobody() { return Connect(ca_.ClientCredentials(nullptr)); }
  Channel As(const TestCa::Wish& wish) {
    const PemPair client = ca_.Issue(wish);
    return Connect(ca_.ClientCredentials(&client));
  }
  Channel As(const std::string& path) { return As(TestCa::Wish{{Uri(path)}, false}); }

  static absl::Status Call(const Channel& channel, const std::string& method,
                           const std::string& token = "") {
    RawStream call(channel, method, token);
    const grpc::Slice garbage("\xff\xff\xff");
    call.Write(grpc::ByteBuffer(&garbage, 1));
    call.WritesDone();
    return call.Drain();
  }
  // Whether the method's message was read: no method can parse it.
  static bool WasRead(const absl::Status& status) { return ReasonOf(status) == Reason::kBadFrame; }
  void Deny(const std::string& path) {
    GateFiles files;
    files.denied = *DeniedIdentities::Parse(Uri(path), "denied", "test");
    gate_.Replace(std::move(files));
  }
  std::vector<AuditLine> lines() {
    MutexLock lock(&mu_);
    return lines_;
  }

  TestCa ca_;
  ServerMetrics metrics_{BuildInfo()};
  std::shared_ptr<FakeDirectory> directory_ = std::make_shared<FakeDirectory>();
  DirectoryHolder holder_{absl::UnavailableError("no directory")};
  Health health_;
  Gate gate_{{.secured = true, .domain = "test"}, &metrics_};
  Mutex mu_;
  std::vector<AuditLine> lines_ ABSL_GUARDED_BY(mu_);
  AuditLog audit_{RealClock::Get(), [this](const AuditLine& line) {
                    MutexLock lock(&mu_);
                    lines_.push_back(line);
                  }};
  FakeClock clock_;  // Stands still: no stream is silent for long.
  ThreadExecutor executor_{"test", 1};
  TrainerStreamDeps stream_deps_;
  GenericServer server_;
};

TEST_F(GateServicesTest, EveryRoleMayCallWhatItsRowsSayAndNothingElseIsRead) {
  const std::map<Role, std::string> paths = {{Role::kTrainer, "tenant/a/trainer"},
                                             {Role::kViewer, "tenant/a/viewer"},
                                             {Role::kOperator, "tenant/a/operator"},
                                             {Role::kServer, "server/0"},
                                             {Role::kAdmin, "admin"}};
  for (const auto& [role, path] : paths) {
    const Channel channel = As(path);
    for (const MethodRow& row : MethodTable()) {
      const absl::Status status = Call(channel, row.method);
      const bool may = row.scope == Scope::kOpen || row.roles.Has(role);
      EXPECT_EQ(WasRead(status), may) << path << " " << row.method << ": " << status;
      if (may) continue;
      EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << row.method;
    }
  }
}

TEST_F(GateServicesTest, OrdersOfAServerThatIsNotTheHomeAreNotRead) {
  const Channel channel = As("server/2");
  for (const MethodRow& row : MethodTable()) {
    if (!row.roles.Has(Role::kServer)) continue;
    const absl::Status status = Call(channel, row.method);
    EXPECT_EQ(WasRead(status), row.scope != Scope::kHome) << row.method << status;
  }
}

TEST_F(GateServicesTest, WithoutAnIdentityOnlyHealthIsRead) {
  const struct {
    const char* name;
    Channel channel;
    bool connects;  // else the handshake fails
  } callers[] = {
      {"nobody", Nobody(), true},
      {"plaintext", Connect(grpc::InsecureChannelCredentials()), false},
      {"expired", As(TestCa::Wish{{Uri("admin")}, true}), false},
      {"no URI", As(TestCa::Wish{}), true},
      {"two URIs", As(TestCa::Wish{{Uri("admin"), Uri("server/0")}, false}), true},
      {"another domain", As(TestCa::Wish{{"spiffe://other/admin"}, false}), true},
      {"another authority",
       [this] {
         const PemPair stranger = TestCa().Issue(Uri("admin"));
         return Connect(ca_.ClientCredentials(&stranger));
       }(),
       false},
  };
  for (const auto& [name, channel, connects] : callers) {
    for (const MethodRow& row : MethodTable()) {
      const absl::Status status = Call(channel, row.method);
      const bool open = connects && row.scope == Scope::kOpen;
      EXPECT_EQ(WasRead(status), open) << name << " " << row.method << ": " << status;
      if (open) continue;
      EXPECT_EQ(status.code(),
                connects ? absl::StatusCode::kUnauthenticated : absl::StatusCode::kUnavailable)
          << name << " " << row.method << ": " << status;
    }
  }
}

TEST_F(GateServicesTest, ADeniedIdentityIsRefusedOnAConnectionThatStands) {
  const Channel channel = As("admin");
  EXPECT_TRUE(WasRead(Call(channel, method::kAdminListJobs)));
  Deny("admin");
  for (const MethodRow& row : MethodTable()) {
    const absl::Status status = Call(channel, row.method);
    EXPECT_EQ(WasRead(status), row.scope == Scope::kOpen) << row.method << status;
  }
  EXPECT_EQ(metrics_.calls_refused("denied")->value(), MethodTable().size() - 2);
}

TEST_F(GateServicesTest, ATokenStandsForItsIdentity) {
  const TokenHash hash = HashToken("secret");
  const std::string bytes(reinterpret_cast<const char*>(hash.data()), hash.size());
  GateFiles files;
  files.tokens = *TokenTable::Parse(
      absl::StrCat("sha256:", absl::BytesToHexString(bytes), " ", Uri("tenant/a/operator")), "t",
      "test");
  gate_.Replace(std::move(files));
  EXPECT_TRUE(WasRead(Call(Nobody(), method::kAdminListJobs, "secret")));
  EXPECT_EQ(Call(Nobody(), method::kAdminListJobs, "wrong").code(),
            absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(Call(Nobody(), method::kPeerDropJob, "secret").code(),
            absl::StatusCode::kPermissionDenied);
}

// The attack: a stranger that knows a job's number deletes the job at one server.
TEST_F(GateServicesTest, AStrangerDropsNoJob) {
  v1::PeerDropJob drop;
  drop.set_job(77);
  for (const Channel& stranger : {Nobody(), As("tenant/a/trainer"), As("server/2")}) {
    RawStream call(stranger, method::kPeerDropJob);
    call.Write(SerializeMessage(drop));
    EXPECT_THAT(ReasonOf(call.Drain()), testing::AnyOf(Reason::kNoIdentity, Reason::kNotPermitted));
  }
  EXPECT_TRUE(directory_->WaitUntil([](FakeDirectory& d) { return d.drops_.empty(); }));
  RawStream home(As("server/0"), method::kPeerDropJob);
  home.Write(SerializeMessage(drop));
  EXPECT_TRUE(home.Drain().ok());
  EXPECT_TRUE(directory_->WaitUntil(
      [](FakeDirectory& d) { return d.drops_ == std::vector<uint64_t>{77}; }));
}

// The attack: a stranger lists all jobs.
TEST_F(GateServicesTest, ATenantListsItsOwnJobs) {
  directory_->durable_jobs = {{.name = "one", .tenant = "a"}, {.name = "two", .tenant = "b"}};
  const auto names = [&](const std::string& path) {
    RawStream call(As(path), method::kAdminListJobs);
    call.Write(SerializeMessage(v1::ListJobsRequest()));
    std::vector<std::string> found;
    const auto reply = call.ReadReply<v1::ListJobsReply>();
    for (const auto& job : reply.jobs()) found.push_back(job.name());
    return found;
  };
  EXPECT_EQ(names("tenant/a/viewer"), std::vector<std::string>{"one"});
  EXPECT_EQ(names("tenant/b/operator"), std::vector<std::string>{"two"});
  EXPECT_EQ(names("tenant/c/viewer"), std::vector<std::string>{});
  EXPECT_EQ(names("admin"), (std::vector<std::string>{"one", "two"}));
}

TEST_F(GateServicesTest, StatusShowsATenantNothingOfOthers) {
  const auto status = [&](const std::string& path) {
    RawStream call(As(path), method::kAdminStatus);
    v1::StatusRequest request;
    request.set_events(10);
    call.Write(SerializeMessage(request));
    return call.ReadReply<v1::StatusReply>();
  };
  BALLAST_LOG(WARN) << "an event of some tenant";
  const v1::StatusReply all = status("admin");
  EXPECT_EQ(all.jobs_size(), 1);
  EXPECT_EQ(all.memory_used_bytes(), 10u);
  EXPECT_GT(all.events_size(), 0);
  EXPECT_EQ(status("tenant/default/viewer").jobs_size(), 1);
  const v1::StatusReply other = status("tenant/a/viewer");
  EXPECT_EQ(other.jobs_size(), 0);
  EXPECT_EQ(other.memory_used_bytes(), 0u);
  EXPECT_EQ(other.events_size(), 0);
}

TEST_F(GateServicesTest, AStreamCarriesItsCallerAndEndsWhenTheIdentityIsDenied) {
  RawStream stream(As("tenant/a/trainer/7"), method::kExchange);
  v1::ClientMessage message;
  *message.mutable_hello()->mutable_protocol() = OwnProtocolRange();
  message.mutable_hello()->set_job(77);
  ASSERT_TRUE(stream.Write(message));
  EXPECT_TRUE(stream.ReadMessage().has_welcome());
  EXPECT_EQ(directory_->engine->hello_.caller.uri(), Uri("tenant/a/trainer/7"));
  Deny("tenant/a/trainer/7");
  const v1::ServerMessage last = stream.ReadMessage();
  EXPECT_EQ(last.error().reason(), v1::REASON_NOT_PERMITTED);
  EXPECT_EQ(stream.Drain().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(GateServicesTest, AServerSaysHelloAndVotesForItselfOnly) {
  v1::PeerHello hello;
  *hello.mutable_protocol() = OwnProtocolRange();
  v1::Prepare vote;
  vote.set_job(77);
  for (const uint32_t server : {2u, 3u}) {
    hello.set_id(server);
    vote.set_server(server);
    RawStream greets(As("server/2"), method::kPeerHello);
    greets.Write(SerializeMessage(hello));
    EXPECT_EQ(greets.Drain().ok(), server == 2);
    RawStream votes(As("server/2"), method::kPeerVote);
    votes.Write(SerializeMessage(vote));
    EXPECT_EQ(votes.Drain().code() == absl::StatusCode::kPermissionDenied, server != 2);
  }
}

TEST_F(GateServicesTest, OrdersAndRefusalsAreAudited) {
  v1::PeerDropJob drop;
  drop.set_job(77);
  for (const char* const path : {"server/0", "tenant/a/trainer"}) {
    RawStream call(As(path), method::kPeerDropJob);
    call.Write(SerializeMessage(drop));
    call.Drain().IgnoreError();
  }
  Call(As("admin"), method::kAdminListJobs).IgnoreError();  // Reads only: not audited.
  server_.Shutdown(std::chrono::seconds(60));               // Calls are audited when they are over.
  const std::vector<AuditLine> found = lines();
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].kind, "order");
  EXPECT_EQ(found[0].identity, Uri("server/0"));
  EXPECT_EQ(found[0].job, "000000000000004d");
  EXPECT_EQ(found[0].result, "OK");
  EXPECT_EQ(found[1].kind, "refused");
  EXPECT_EQ(found[1].identity, Uri("tenant/a/trainer"));
  EXPECT_EQ(found[1].tenant, "a");
  EXPECT_EQ(found[1].job, "");
  EXPECT_EQ(found[1].result, "PermissionDenied");
  EXPECT_THAT(found[1].peer, HasSubstr("127.0.0.1"));
}

}  // namespace
}  // namespace ballast::server
