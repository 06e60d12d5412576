// The column "other tenant" of the matrix: every method about a tenant's property, over real TLS
// and a real directory. Another tenant's property and missing names get the same answer, to the
// byte. A control asks the same as the owner, and sees the difference.
//
// Requests are made by reflection: every string is one name, every number of a job one number. The
// owner's job, snapshot and export all have that name.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/base/reason.h"
#include "common/text/names.h"
#include "common/threads/thread_executor.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "proto/convert/job_convert.h"
#include "proto/convert/methods.h"
#include "server/convert/plan_convert.h"
#include "server/rpc/generic_server.h"
#include "server/service/admin_service.h"
#include "server/service/control_service.h"
#include "server/service/trainer_stream.h"
#include "tests/server/directory/durable_cluster.h"
#include "tests/server/security/test_ca.h"
#include "tests/server/service/fakes.h"

namespace ballast::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using testing::DurableDirectories;

constexpr char kTheirs[] = "gpt";
constexpr char kMissing[] = "xyz";
constexpr uint64_t kIncarnation = 100;
constexpr uint64_t kMissingJob = 0x1111222233334444;

// The object of a request.
struct Target {
  std::string name;
  uint64_t job = 0;
};

std::string Uri(const std::string& path) { return absl::StrCat("spiffe://test/", path); }

// Every method of the table that is about a tenant's property.
std::vector<std::string> TenantMethods() {
  std::vector<std::string> methods;
  for (const MethodRow& row : MethodTable()) {
    if (row.scope == Scope::kTenant) methods.emplace_back(row.method);
  }
  return methods;
}

// The empty request of a method, by its path.
std::unique_ptr<Message> RequestOf(const std::string& path) {
  const std::vector<std::string> parts = absl::StrSplit(path, '/');
  const auto* const service =
      google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(parts[1]);
  const Descriptor* const type = service->FindMethodByName(parts[2])->input_type();
  const auto* const prototype =
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(type);
  return std::unique_ptr<Message>(prototype->New());
}

// Every text is the name, and every number of a job the number.
void Fill(const Target& target, Message* message) {
  const auto* const reflection = message->GetReflection();
  const Descriptor* const type = message->GetDescriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* const field = type->field(i);
    if (field->is_repeated() || field->name() == "tenant") continue;
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      reflection->SetString(message, field, target.name);
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_UINT64 && field->name() == "job") {
      reflection->SetUInt64(message, field, target.job);
    }
  }
}

// Other fields that a message needs to get as far as the name.
void Complete(const Target& target, Message* message) {
  if (auto* const attach = dynamic_cast<v1::AttachRequest*>(message); attach != nullptr) {
    AttachCall call = testing::SeatCall(0, kIncarnation + 9);
    call.spec.name = target.name;
    *attach->mutable_protocol() = OwnProtocolRange();
    ToProto(call.spec, attach->mutable_spec());
    attach->set_incarnation(call.incarnation);
    attach->set_init(v1::INIT_MODE_EQUAL);
    attach->set_resume(v1::RESUME_MUST);
    for (const uint32_t crc : call.tensor_crc32c) attach->add_tensor_crc32c(crc);
  }
  if (auto* const extend = dynamic_cast<v1::ExtendRequest*>(message); extend != nullptr) {
    extend->set_epoch(1);
    extend->set_incarnation(kIncarnation);
    extend->set_init(v1::INIT_MODE_EQUAL);
  }
  if (auto* const ask = dynamic_cast<v1::RendezvousRequest*>(message); ask != nullptr) {
    ask->set_epoch(1);
    ask->set_incarnation(kIncarnation);
    ask->set_act(v1::RENDEZVOUS_ACT_ROLL_CALL);
    ask->set_generation(1);
  }
  if (auto* const stream = dynamic_cast<v1::ClientMessage*>(message); stream != nullptr) {
    v1::Hello* const hello = stream->mutable_hello();
    *hello->mutable_protocol() = OwnProtocolRange();
    hello->set_job(target.job);
    hello->set_epoch(1);
    hello->set_incarnation(kIncarnation);
  }
}

class OtherTenantTest : public ::testing::TestWithParam<std::string> {
 protected:
  OtherTenantTest() : cluster_(1, {.snapshots = true}) {
    MakeTheirs();
    holder_.Set(cluster_.At(0));
    AddControlMethods(
        &server_, &holder_, {}, [] { return ServerFacts(); }, &metrics_);
    AddAdminMethods(&server_, &holder_, [] { return ServerFacts(); });
    stream_deps_.directory = &holder_;
    stream_deps_.executor = &executor_;
    stream_deps_.clock = &clock_;
    stream_deps_.gate = &gate_;
    server_.AddMethod(method::kExchange, TrainerStream::Factory(&stream_deps_),
                      MethodType::kBidiStream);
    GenericServerOptions options;
    options.gate = &gate_;
    options.credentials = ca_.ServerCredentials(/*needed=*/true);
    const absl::Status started = server_.Start(options);
    EXPECT_TRUE(started.ok()) << started;
  }
  ~OtherTenantTest() override {
    server_.Shutdown(std::chrono::milliseconds(0));
    executor_.Shutdown();
  }

  // Tenant a's job, snapshot and export, all of one name.
  void MakeTheirs() {
    const Caller owner{.secured = true,
                       .identity = *ParseIdentity(Uri("tenant/a/trainer"), "test")};
    testing::AttachAnswer seats[2];
    for (const uint32_t slot : {0u, 1u}) {
      AttachCall call = testing::SeatCall(slot, kIncarnation + slot);
      call.spec.name = kTheirs;
      call.caller = owner;
      cluster_.At(0)->apis().trainers->Attach(call, seats[slot].Setter());
    }
    const absl::StatusOr<AttachResult> made = seats[1].Get();
    ASSERT_TRUE(made.ok()) << made.status();
    job_ = made->plan.job;
    SnapshotManifest manifest{.id = 5, .name = kTheirs, .job = kTheirs, .round = 2};
    manifest.plan = MakePlanCodec().encode(made->plan);
    manifest.prepared.round = manifest.decision.round = 1;
    SnapshotStore snapshots = DurableDirectories::Snapshots(cluster_.Disk(0), 0).Of("a");
    ASSERT_TRUE(snapshots.Begin(manifest.id, kTheirs, kTheirs, 1).ok());
    ASSERT_TRUE(snapshots.Commit(manifest).ok());
    Exports exports = DurableDirectories::ExportsOn(cluster_.Disk(0)).Of("a");
    ASSERT_TRUE(exports.Begin(kTheirs, 1, false).ok());
    ASSERT_TRUE(exports.Commit(kTheirs, {}, manifest).ok());
  }

  Target Theirs() const { return {kTheirs, job_}; }

  // All that a caller of `tenant` hears: the replies, the status and its details, with the target's
  // name and number written alike whatever they are.
  std::string Ask(const std::string& tenant, const std::string& method, const Target& target,
                  const std::string& named_tenant = "") {
    const std::unique_ptr<Message> request = RequestOf(method);
    Fill(target, request.get());
    Complete(target, request.get());
    const FieldDescriptor* const field = request->GetDescriptor()->FindFieldByName("tenant");
    if (field != nullptr) request->GetReflection()->SetString(request.get(), field, named_tenant);
    const MethodRow* const row = FindMethod(method);
    const char* const role = row->roles.Has(Role::kTrainer) ? "/trainer" : "/operator";
    const PemPair pair = ca_.Issue(Uri(absl::StrCat("tenant/", tenant, role)));
    RawStream call(grpc::CreateChannel(absl::StrCat("127.0.0.1:", server_.port()),
                                       ca_.ClientCredentials(&pair)),
                   method);
    call.Write(SerializeMessage(*request));
    call.WritesDone();
    std::string heard;
    grpc::ByteBuffer bytes;
    while (call.Read(&bytes)) absl::StrAppend(&heard, Text(bytes), "\n");
    const absl::Status status = call.Finish();
    absl::StrAppend(&heard, status.ToString(absl::StatusToStringMode::kWithEverything));
    return absl::StrReplaceAll(heard, {{target.name, "NAME"}, {JobIdText(target.job), "NUMBER"}});
  }
  static std::string Text(const grpc::ByteBuffer& bytes) {
    std::vector<grpc::Slice> slices;
    EXPECT_TRUE(bytes.Dump(&slices).ok());
    std::string text;
    for (const grpc::Slice& slice : slices) {
      text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
    return text;
  }

  TestCa ca_;
  ServerMetrics metrics_{BuildInfo()};
  DurableDirectories cluster_;
  uint64_t job_ = 0;
  DirectoryHolder holder_{absl::UnavailableError("no directory")};
  Gate gate_{{.secured = true, .domain = "test"}, &metrics_};
  FakeClock clock_;  // Stands still: no stream is silent for long.
  ThreadExecutor executor_{"test", 1};
  TrainerStreamDeps stream_deps_;
  GenericServer server_;
};

TEST_P(OtherTenantTest, GetsTheSameAnswersForExistingAndMissingJobs) {
  const std::string missing = Ask("b", GetParam(), {kMissing, kMissingJob});
  EXPECT_EQ(Ask("b", GetParam(), Theirs()), missing);
}

// For existing and missing objects alike: the tenant named by a message is the caller's, or the
// call is refused.
TEST_P(OtherTenantTest, MayNotNameTheTenant) {
  if (RequestOf(GetParam())->GetDescriptor()->FindFieldByName("tenant") == nullptr) return;
  const std::string named = Ask("b", GetParam(), Theirs(), "a");
  EXPECT_THAT(named, ::testing::HasSubstr("PERMISSION_DENIED"));
  EXPECT_EQ(named, Ask("b", GetParam(), {kMissing, kMissingJob}, "a"));
}

// The control: the owner hears the difference, in a list by the name.
TEST_P(OtherTenantTest, TheOwnerHearsTheDifference) {
  const std::string missing = Ask("a", GetParam(), {kMissing, kMissingJob});
  const std::string theirs = Ask("a", GetParam(), Theirs());
  if (GetParam() == method::kAdminListJobs || GetParam() == method::kAdminStatus) {
    EXPECT_THAT(theirs, ::testing::HasSubstr("NAME"));
  } else if (GetParam() == method::kAdminListTenants) {  // It names nothing.
    EXPECT_NE(theirs, Ask("b", GetParam(), Theirs()));
  } else {
    EXPECT_NE(theirs, missing);
  }
}

INSTANTIATE_TEST_SUITE_P(EveryMethod, OtherTenantTest, ::testing::ValuesIn(TenantMethods()),
                         [](const auto& method) {
                           return method.param.substr(method.param.rfind('/') + 1);
                         });

}  // namespace
}  // namespace ballast::server
