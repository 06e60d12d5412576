// The gate's files on disk: how they are read, and which file is refused.
#include "server/security/files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast::server {
namespace {

using testing::HasSubstr;

class FilesTest : public testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& text, mode_t mode) {
    const std::string path = absl::StrCat(testing::TempDir(), "gate_files_", getpid(), "_", name);
    std::remove(path.c_str());
    std::ofstream(path) << text;
    chmod(path.c_str(), mode);
    return path;
  }
  static std::string TokensError(const std::string& path) {
    TokenTable tokens;
    return std::string(ReadTokens(path, "d", &tokens).message());
  }
  static std::string DeniedError(const std::string& path) {
    DeniedIdentities denied;
    return std::string(ReadDenied(path, "d", &denied).message());
  }
  const std::string tokens_ =
      absl::StrCat("sha256:", std::string(64, '0'), " spiffe://d/tenant/a/trainer\n");
};

TEST_F(FilesTest, NoPathsAreNoTokensAndNoDenials) {
  GateFiles files;
  ASSERT_TRUE(ReadTokens("", "d", &files.tokens).ok());
  ASSERT_TRUE(ReadDenied("", "d", &files.denied).ok());
  EXPECT_EQ(files.tokens.size(), 0u);
  EXPECT_EQ(files.denied.size(), 0u);
}

TEST_F(FilesTest, BothFilesAreRead) {
  GateFiles files;
  ASSERT_EQ(ReadTokens(Write("tokens", tokens_, 0600), "d", &files.tokens), absl::OkStatus());
  const std::string denied = Write("denied", "# gone\nspiffe://d/server/1\n", 0644);
  ASSERT_EQ(ReadDenied(denied, "d", &files.denied), absl::OkStatus());
  EXPECT_EQ(files.tokens.size(), 1u);
  Identity server{.role = Role::kServer, .domain = "d", .server = 1};
  EXPECT_TRUE(files.denied.Has(server));
  server.server = 2;
  EXPECT_FALSE(files.denied.Has(server));
}

TEST_F(FilesTest, AFileAtFaultIsNamed) {
  EXPECT_THAT(
      TokensError(Write("open", tokens_, 0644)),
      HasSubstr("open: has mode 0644, so others may read or write this file; chmod 0640 it"));
  EXPECT_EQ(TokensError(Write("group", tokens_, 0640)), "");
  EXPECT_THAT(TokensError(Write("write", tokens_, 0620)), HasSubstr("has mode 0620"));
  EXPECT_THAT(
      DeniedError(Write("denied_write", "", 0666)),
      HasSubstr("denied_write: has mode 0666, so others may write this file; chmod 0644 it"));
  EXPECT_THAT(TokensError("/nonexistent/tokens"),
              HasSubstr("/nonexistent/tokens: cannot be read: No such file"));
  EXPECT_THAT(TokensError(testing::TempDir()), HasSubstr("is no regular file"));
  EXPECT_THAT(TokensError(Write("bad", "x\n", 0600)), HasSubstr("_bad:1:1: "));
  EXPECT_THAT(DeniedError(Write("denied_bad", "\nspiffe://e/admin\n", 0600)),
              HasSubstr("denied_bad:2:1: identity"));
  EXPECT_THAT(TokensError(Write("large", std::string(5 << 20, '#'), 0600)),
              HasSubstr("limit of 4194304 bytes"));
}

TEST_F(FilesTest, AFaultyFileKeepsTheOldContent) {
  const Identity server{.role = Role::kServer, .domain = "d", .server = 1};
  const std::string bad = Write("both_bad", "x\n", 0600);
  GateFiles files;
  ASSERT_TRUE(ReadTokens(Write("tokens", tokens_, 0600), "d", &files.tokens).ok());
  EXPECT_FALSE(ReadTokens(bad, "d", &files.tokens).ok());
  EXPECT_EQ(files.tokens.size(), 1u);
  ASSERT_TRUE(ReadDenied(Write("denied", "spiffe://d/server/1\n", 0600), "d", &files.denied).ok());
  EXPECT_FALSE(ReadDenied(bad, "d", &files.denied).ok());
  EXPECT_TRUE(files.denied.Has(server));
}

}  // namespace
}  // namespace ballast::server
