// The token file: the tokens it knows, and its faults by line and column.
#include "common/security/tokens.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

std::string Line(const std::string& token, const std::string& path) {
  const TokenHash hash = HashToken(token);
  const std::string bytes(reinterpret_cast<const char*>(hash.data()), hash.size());
  return absl::StrCat("sha256:", absl::BytesToHexString(bytes), " spiffe://d/", path, "\n");
}

absl::StatusOr<TokenTable> Parse(const std::string& text) {
  return TokenTable::Parse(text, "tokens", "d");
}

TEST(TokensTest, AHashIsSha256) {  // FIPS 180-2, appendix B.1
  const TokenHash hash = HashToken("abc");
  EXPECT_EQ(
      absl::BytesToHexString(std::string(reinterpret_cast<const char*>(hash.data()), hash.size())),
      "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(TokensTest, ATokenGivesItsIdentity) {
  const auto table = Parse(absl::StrCat("# tokens\n\n", Line("one", "tenant/a/trainer"),
                                        Line("two", "tenant/b/operator")));
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(table->size(), 2u);
  ASSERT_NE(table->Find("one"), nullptr);
  EXPECT_EQ(UriOf(*table->Find("one")), "spiffe://d/tenant/a/trainer");
  EXPECT_EQ(UriOf(*table->Find("two")), "spiffe://d/tenant/b/operator");
  EXPECT_EQ(table->Find("on"), nullptr);
  EXPECT_EQ(table->Find(""), nullptr);
  EXPECT_EQ(TokenTable().Find("one"), nullptr);
}

TEST(TokensTest, FaultsAreNamedByLineAndColumnWithoutAHash) {
  const std::string good = Line("one", "tenant/a/trainer");
  const struct {
    std::string text;
    std::string begins;
  } cases[] = {
      {"token one\n", "tokens:1:1: "},
      {good + "sha256:abc spiffe://d/admin\n", "tokens:2:8: "},
      {"\n" + absl::StrCat("sha256:", std::string(64, 'G'), " spiffe://d/admin"), "tokens:2:8: "},
      {absl::StrCat("sha256:", std::string(65, 'a'), " spiffe://d/admin"), "tokens:1:8: "},
      {Line("x", "tenant/a/root"), "tokens:1:73: "},
      {Line("x", "server/1"), "tokens:1:73: a server has a certificate"},
      {absl::StrCat("sha256:", std::string(64, 'a'), "  spiffe://e/admin"), "tokens:1:74: "},
      {absl::StrCat("sha256:", std::string(64, 'a')), "tokens:1:72: "},
      {good + Line("one", "tenant/b/trainer"), "tokens:2:1: the token of this line stands"},
  };
  for (const auto& one : cases) {
    const absl::Status status = Parse(one.text).status();
    EXPECT_THAT(std::string(status.message()), StartsWith(one.begins));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("aaaaaaaa")));
  }
}

}  // namespace
}  // namespace ballast
