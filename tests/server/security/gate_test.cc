// The gate alone: which connection is which identity, and which identity may make which call.
#include "server/security/gate.h"

#include <fstream>
#include <map>
#include <sstream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast::server {
namespace {

using testing::HasSubstr;

constexpr char kDomain[] = "test";

std::string Uri(const std::string& path) { return absl::StrCat("spiffe://test/", path); }

CallerFacts Certified(const std::string& path) {
  return {.encrypted = true, .certified = true, .uris = {Uri(path)}};
}

CallerFacts WithHeader(const std::string& value) {
  return {.encrypted = true, .authorization = {value}};
}

class GateTest : public testing::Test {
 protected:
  absl::Status Admit(const char* method, const CallerFacts& facts) {
    return gate_.Admit(*FindMethod(method), facts).status;
  }
  // The call's refusal, by the metric that counts it; "" when it was let in.
  std::string Refused(const char* method, const CallerFacts& facts) {
    const auto counts = [this] {
      std::map<std::string, uint64_t> found;
      for (int i = 0; i <= static_cast<int>(Refusal::kNumber); ++i) {
        const char* const name = RefusalName(static_cast<Refusal>(i));
        found[name] = metrics_.calls_refused(name)->value();
      }
      return found;
    };
    const auto before = counts();
    const absl::Status status = Admit(method, facts);
    for (const auto& [name, count] : counts()) {
      if (count == before.at(name)) continue;
      EXPECT_FALSE(status.ok());
      return name;
    }
    EXPECT_TRUE(status.ok()) << status;
    return "";
  }

  ServerMetrics metrics_{BuildInfo()};
  Gate gate_{{.secured = true, .domain = kDomain}, &metrics_};
};

constexpr char kAttach[] = "/ballast.v1.Control/Attach";
constexpr char kDrop[] = "/ballast.v1.Peer/DropJob";
constexpr char kDelete[] = "/ballast.v1.Admin/DeleteJob";
constexpr char kStatus[] = "/ballast.v1.Admin/Status";
constexpr char kHealth[] = "/grpc.health.v1.Health/Check";

TEST_F(GateTest, WithoutSecurityEveryCallIsLetInAsTheDefaultTenant) {
  const Gate open({}, nullptr);
  for (const MethodRow& row : MethodTable()) {
    const Admission admission = open.Admit(row, {});
    EXPECT_EQ(admission.caller.tenant(), "default");
    // Of orders and votes it knows more once it knows the servers.
    const Reason reason = open.Looks(row) ? Reason::kRecovering : Reason::kUnspecified;
    EXPECT_EQ(ReasonOf(admission.status), reason) << row.method;
  }
  EXPECT_TRUE(open.CheckServer({}, 7).ok());
}

TEST_F(GateTest, WithoutSecurityTheHomeTakesNoOrders) {
  Gate open({}, &metrics_);
  open.SetServers(0, {0, 1});
  EXPECT_EQ(open.Admit(*FindMethod(kAttach), {}).status, absl::OkStatus());
  EXPECT_EQ(open.Admit(*FindMethod("/ballast.v1.Peer/Hello"), {}).status, absl::OkStatus());
  EXPECT_EQ(ReasonOf(open.Admit(*FindMethod(kDrop), {}).status), Reason::kNotPermitted);
  EXPECT_EQ(metrics_.calls_refused("not_home")->value(), 1u);
}

TEST_F(GateTest, HealthNeedsNoIdentity) { EXPECT_EQ(Refused(kHealth, {}), ""); }

TEST_F(GateTest, AConnectionWithoutIdentityIsUnauthenticated) {
  EXPECT_EQ(Refused(kAttach, {}), "plaintext");
  EXPECT_EQ(Refused(kAttach, {.encrypted = true}), "no_identity");
  EXPECT_EQ(Refused(kAttach, Certified("nonsense")), "bad_identity");
  CallerFacts two = Certified("tenant/a/trainer");
  two.uris.push_back(Uri("admin"));
  EXPECT_EQ(Refused(kAttach, two), "bad_identity");
  two.uris.clear();
  EXPECT_EQ(Refused(kAttach, two), "bad_identity");
  const absl::Status status = Admit(kAttach, two);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(ReasonOf(status), Reason::kNoIdentity);
}

TEST_F(GateTest, ARoleMayCallWhatItsRowSays) {
  EXPECT_EQ(Refused(kAttach, Certified("tenant/a/trainer")), "");
  EXPECT_EQ(Refused(kAttach, Certified("tenant/a/operator")), "role");
  EXPECT_EQ(Refused(kDelete, Certified("tenant/a/operator")), "");
  EXPECT_EQ(Refused(kDelete, Certified("admin")), "");
  EXPECT_EQ(Refused(kDelete, Certified("tenant/a/trainer")), "");
  EXPECT_EQ(Refused(kDelete, Certified("tenant/a/viewer")), "role");
  EXPECT_EQ(Refused(kStatus, Certified("tenant/a/viewer")), "");
  const absl::Status status = Admit(kStatus, Certified("tenant/a/trainer"));
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(ReasonOf(status), Reason::kNotPermitted);
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("role trainer may not call /ballast.v1.Admin/Status; roles that may: viewer, "
                "operator, admin"));
}

TEST_F(GateTest, ARefusalSaysWhoWasRefused) {
  const Admission admission = gate_.Admit(*FindMethod(kStatus), Certified("tenant/a/trainer"));
  EXPECT_FALSE(admission.status.ok());
  EXPECT_EQ(admission.caller.uri(), "spiffe://test/tenant/a/trainer");
}

TEST_F(GateTest, OrdersComeFromTheHomeOnly) {
  const absl::Status early = Admit(kDrop, Certified("server/0"));
  EXPECT_EQ(early.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(early), Reason::kRecovering);
  gate_.SetServers(1, {0, 1});
  EXPECT_EQ(Refused(kDrop, Certified("server/0")), "");
  EXPECT_EQ(Refused(kDrop, Certified("server/1")), "not_home");
  EXPECT_EQ(Refused(kDrop, Certified("admin")), "role");
  EXPECT_EQ(Refused("/ballast.v1.Peer/Vote", Certified("server/1")), "");
}

TEST_F(GateTest, AServerSpeaksForItself) {
  const Admission one = gate_.Admit(*FindMethod("/ballast.v1.Peer/Hello"), Certified("server/1"));
  EXPECT_TRUE(gate_.CheckServer(one.caller, 1).ok());
  EXPECT_EQ(gate_.CheckServer(one.caller, 0).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(metrics_.calls_refused("wrong_server")->value(), 1u);
}

TEST_F(GateTest, ATokenCountsOverTlsAndWithoutACertificateOnly) {
  const TokenHash hash = HashToken("secret");
  const std::string bytes(reinterpret_cast<const char*>(hash.data()), hash.size());
  GateFiles files;
  files.tokens = *TokenTable::Parse(
      absl::StrCat("sha256:", absl::BytesToHexString(bytes), " ", Uri("tenant/a/trainer")), "t",
      kDomain);
  gate_.Replace(std::move(files));
  EXPECT_EQ(Refused(kAttach, WithHeader("Bearer secret")), "");
  EXPECT_EQ(Refused(kAttach, WithHeader("Bearer secret ")), "bad_token");
  EXPECT_EQ(Refused(kAttach, WithHeader("bearer secret")), "bad_token");
  EXPECT_EQ(Refused(kAttach, WithHeader("secret")), "bad_token");
  EXPECT_EQ(Refused(kAttach, WithHeader("Bearer other")), "bad_token");
  EXPECT_EQ(Refused(kStatus, WithHeader("Bearer secret")), "role");
  CallerFacts plain = WithHeader("Bearer secret");
  plain.encrypted = false;
  EXPECT_EQ(Refused(kAttach, plain), "plaintext");
  CallerFacts twice = WithHeader("Bearer secret");
  twice.authorization.push_back("Bearer secret");
  EXPECT_EQ(Refused(kAttach, twice), "bad_token");
  // A certificate is not made better by a token.
  CallerFacts both = Certified("tenant/a/viewer");
  both.authorization = {"Bearer secret"};
  EXPECT_EQ(Refused(kAttach, both), "role");
  const absl::Status status = Admit(kAttach, WithHeader("Bearer other"));
  EXPECT_THAT(std::string(status.message()), testing::Not(HasSubstr("other")));
}

TEST_F(GateTest, ADeniedIdentityIsRefusedFromTheNextCallOn) {
  const CallerFacts trainer = Certified("tenant/a/trainer/7");
  const Admission before = gate_.Admit(*FindMethod(kAttach), trainer);
  EXPECT_TRUE(before.status.ok());
  EXPECT_TRUE(gate_.StillAllowed(before.caller).ok());
  GateFiles files;
  files.denied = *DeniedIdentities::Parse(Uri("tenant/a/trainer/7"), "d", kDomain);
  gate_.Replace(std::move(files));
  EXPECT_EQ(Refused(kAttach, trainer), "denied");
  EXPECT_EQ(gate_.StillAllowed(before.caller).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Refused(kAttach, Certified("tenant/a/trainer")), "");
  gate_.Replace({});
  EXPECT_EQ(Refused(kAttach, trainer), "");
}

TEST(MethodTableTest, NamesAreDifferentAndThePageHasThemAll) {
  const std::string page = MethodTablePage();
  for (const MethodRow& row : MethodTable()) {
    EXPECT_EQ(FindMethod(row.method), &row);
    EXPECT_THAT(page, HasSubstr(absl::string_view(row.method).substr(1).data()));
  }
  EXPECT_EQ(FindMethod("/ballast.v1.Admin/Nothing"), nullptr);
}

TEST(MethodTableTest, TheDocumentationHasThisTable) {
  std::ifstream file(std::string(BALLAST_SOURCE_DIR) + "/docs/security.md");
  std::ostringstream text;
  text << file.rdbuf();
  EXPECT_THAT(text.str(), HasSubstr(MethodTablePage()));
}

}  // namespace
}  // namespace ballast::server
