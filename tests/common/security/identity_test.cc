// Identities: accepted texts, refused ones, and that an identity has one spelling.
#include "common/security/identity.h"

#include <random>

#include "absl/strings/str_cat.h"
#include "common/security/caller.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using testing::HasSubstr;

constexpr char kDomain[] = "cluster.example";

absl::StatusOr<Identity> Parse(const std::string& rest) {
  return ParseIdentity(absl::StrCat("spiffe://cluster.example", rest), kDomain);
}

TEST(IdentityTest, EachFormIsReadAndWrittenAsItStands) {
  const struct {
    std::string path;
    Role role;
    std::string tenant;
    std::string name;
    uint32_t server;
  } cases[] = {
      {"/tenant/a/trainer", Role::kTrainer, "a", "", 0},
      {"/tenant/team-1.x_Y/trainer/rank-7", Role::kTrainer, "team-1.x_Y", "rank-7", 0},
      {"/tenant/a/viewer", Role::kViewer, "a", "", 0},
      {"/tenant/a/operator", Role::kOperator, "a", "", 0},
      {"/server/0", Role::kServer, "", "", 0},
      {"/server/4294967295", Role::kServer, "", "", 4294967295u},
      {"/admin", Role::kAdmin, "", "", 0},
  };
  for (const auto& one : cases) {
    const auto identity = Parse(one.path);
    ASSERT_TRUE(identity.ok()) << one.path << ": " << identity.status();
    EXPECT_EQ(identity->role, one.role);
    EXPECT_EQ(identity->tenant, one.tenant);
    EXPECT_EQ(identity->name, one.name);
    EXPECT_EQ(identity->server, one.server);
    EXPECT_EQ(UriOf(*identity), absl::StrCat("spiffe://", kDomain, one.path));
  }
}

TEST(IdentityTest, AnInvalidIdentityIsNamedWithTheRule) {
  const struct {
    std::string path;
    std::string why;
  } cases[] = {
      {"", "no path"},
      {"/", "behind the trust domain stands"},
      {"/admin/", "behind the trust domain stands"},
      {"/admin?x", "behind the trust domain stands"},
      {"/Admin", "behind the trust domain stands"},
      {"/tenant/a", "its role is missing"},
      {"/tenant//trainer", "tenant \"\""},
      {"/tenant/../trainer", "tenant \"..\""},
      {"/tenant/a/trainer/", "trainer \"\""},
      {"/tenant/a/trainer/b/c", "5 parts, limit 4"},
      {"/tenant/a/viewer/b", "4 parts, limit 3"},
      {"/tenant/a/root", "role \"root\" is unknown"},
      {"/tenant/a%2fb/trainer", "tenant \"a%2fb\""},
      {"/tenant/a b/trainer", "tenant \"a b\""},
      {"/server", "server/<id>"},
      {"/server/", "server/<id>"},
      {"/server/01", "server/<id>"},
      {"/server/+1", "server/<id>"},
      {"/server/-1", "server/<id>"},
      {"/server/4294967296", "server/<id>"},
      {"/server/1/x", "server/<id>"},
      {":8443/admin", "trust domain is \"cluster.example:8443\""},
      {".org/admin", "trust domain is \"cluster.example.org\""},
  };
  for (const auto& one : cases) {
    const absl::Status status = Parse(one.path).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << one.path;
    EXPECT_THAT(std::string(status.message()), HasSubstr(one.why)) << one.path;
  }
}

TEST(IdentityTest, OtherSchemesDomainsAndLengthsAreRefused) {
  for (const std::string& uri :
       {std::string("https://cluster.example/admin"), std::string("SPIFFE://cluster.example/admin"),
        std::string("spiffe://Cluster.example/admin"), std::string("spiffe://other/admin"),
        std::string("spiffe:///admin"), std::string("spiffe://cluster.example\0/admin", 31),
        "spiffe://cluster.example/tenant/" + std::string(3000, 'a') + "/trainer", std::string()}) {
    EXPECT_FALSE(ParseIdentity(uri, kDomain).ok()) << uri;
  }
}

TEST(IdentityTest, ACertificateHasExactlyOneUri) {
  const std::string admin = "spiffe://cluster.example/admin";
  EXPECT_TRUE(IdentityOfUris({admin}, kDomain).ok());
  EXPECT_THAT(std::string(IdentityOfUris({}, kDomain).status().message()), HasSubstr("no URI"));
  const absl::Status two =
      IdentityOfUris({admin, "spiffe://cluster.example/server/1"}, kDomain).status();
  EXPECT_THAT(std::string(two.message()), HasSubstr("2 URIs"));
  EXPECT_THAT(std::string(two.message()), HasSubstr(admin));
}

// Whatever is read has one spelling, and the text of a refusal stays short.
TEST(IdentityTest, RandomTextsNeverReadAsSomethingElse) {
  std::mt19937 random(7);
  const std::string pieces[] = {
      "spiffe://", "cluster.example", "/", "tenant", "a",      "trainer", "server", "7",
      "0",         "admin",           ".", "%2f",    "viewer", "\xff",    "?",      "operator"};
  int read = 0;
  for (int i = 0; i < 200'000; ++i) {
    std::string uri = i % 2 == 0 ? "spiffe://cluster.example/" : "";
    const size_t count = random() % 8;
    for (size_t p = 0; p < count; ++p) uri += pieces[random() % std::size(pieces)];
    const auto identity = ParseIdentity(uri, kDomain);
    if (identity.ok()) {
      ++read;
      EXPECT_EQ(UriOf(*identity), uri);
    } else {
      EXPECT_LT(identity.status().message().size(), 600u);
    }
  }
  EXPECT_GT(read, 100);
}

TEST(CallerTest, ATenantSeesItsOwnAndAdminsAndServersSeeAll) {
  const auto caller = [](const std::string& rest) { return Caller{true, *Parse(rest)}; };
  EXPECT_TRUE(Caller().Sees("a"));
  EXPECT_EQ(Caller().tenant(), "default");
  EXPECT_EQ(Caller().uri(), "");
  EXPECT_TRUE(caller("/tenant/a/viewer").Sees("a"));
  EXPECT_FALSE(caller("/tenant/a/operator").Sees("b"));
  EXPECT_FALSE(caller("/tenant/a/trainer").Sees("default"));
  EXPECT_TRUE(caller("/admin").Sees("a"));
  EXPECT_TRUE(caller("/server/3").Sees("a"));
  EXPECT_EQ(caller("/tenant/a/trainer").tenant(), "a");
  EXPECT_EQ(caller("/admin").tenant(), "default");
}

}  // namespace
}  // namespace ballast
