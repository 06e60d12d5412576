// The gate's files on disk: what is read, and which file is refused.
#include "server/security/files.h"

#include <sys/stat.h>

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
    const std::string path = absl::StrCat(testing::TempDir(), "gate_files_", name);
    std::remove(path.c_str());
    std::ofstream(path) << text;
    chmod(path.c_str(), mode);
    return path;
  }
  static std::string Error(const GatePaths& paths) {
    GateFiles files;
    return std::string(ReadGateFiles(paths, "d", &files).message());
  }
  const std::string tokens_ =
      absl::StrCat("sha256:", std::string(64, '0'), " spiffe://d/tenant/a/trainer\n");
};

TEST_F(FilesTest, NoPathsAreNoTokensAndNoDenials) {
  GateFiles files;
  ASSERT_TRUE(ReadGateFiles({}, "d", &files).ok());
  EXPECT_EQ(files.tokens.size(), 0u);
  EXPECT_EQ(files.denied.size(), 0u);
}

TEST_F(FilesTest, BothFilesAreRead) {
  GateFiles files;
  const absl::Status status = ReadGateFiles(
      {Write("tokens", tokens_, 0600), Write("denied", "# gone\nspiffe://d/server/1\n", 0644)}, "d",
      &files);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(files.tokens.size(), 1u);
  Identity server{.role = Role::kServer, .domain = "d", .server = 1};
  EXPECT_TRUE(files.denied.Has(server));
  server.server = 2;
  EXPECT_FALSE(files.denied.Has(server));
}

TEST_F(FilesTest, AFileAtFaultIsNamed) {
  EXPECT_THAT(
      Error({Write("open", tokens_, 0644), ""}),
      HasSubstr("open: has mode 0644, so others may read or write this file; chmod 0640 it"));
  EXPECT_EQ(Error({Write("group", tokens_, 0640), ""}), "");
  EXPECT_THAT(Error({Write("write", tokens_, 0620), ""}), HasSubstr("has mode 0620"));
  EXPECT_THAT(
      Error({"", Write("denied_write", "", 0666)}),
      HasSubstr("denied_write: has mode 0666, so others may write this file; chmod 0644 it"));
  EXPECT_THAT(Error({"/nonexistent/tokens", ""}),
              HasSubstr("/nonexistent/tokens: cannot be read: No such file"));
  EXPECT_THAT(Error({testing::TempDir(), ""}), HasSubstr("is no regular file"));
  EXPECT_THAT(Error({Write("bad", "x\n", 0600), ""}), HasSubstr("gate_files_bad:1:1: "));
  EXPECT_THAT(Error({"", Write("denied_bad", "\nspiffe://e/admin\n", 0600)}),
              HasSubstr("denied_bad:2:1: identity"));
  EXPECT_THAT(Error({Write("large", std::string(5 << 20, '#'), 0600), ""}),
              HasSubstr("limit of 4194304 bytes"));
}

// A bad file of tokens must not keep a revocation out, nor the other way round.
TEST_F(FilesTest, AFileAtFaultKeepsItsPartAndOnlyThat) {
  const Identity server{.role = Role::kServer, .domain = "d", .server = 1};
  const std::string good = Write("tokens_good", tokens_, 0600);
  const std::string bad = Write("both_bad", "x\n", 0600);
  const std::string denied = Write("denied_good", "spiffe://d/server/1\n", 0600);
  GateFiles files;
  ASSERT_TRUE(ReadGateFiles({good, ""}, "d", &files).ok());
  EXPECT_FALSE(ReadGateFiles({bad, denied}, "d", &files).ok());
  EXPECT_EQ(files.tokens.size(), 1u);
  EXPECT_TRUE(files.denied.Has(server));
  EXPECT_FALSE(ReadGateFiles({Write("tokens_none", "", 0600), bad}, "d", &files).ok());
  EXPECT_EQ(files.tokens.size(), 0u);
  EXPECT_TRUE(files.denied.Has(server));
  EXPECT_THAT(Error({bad, bad}), testing::ContainsRegex("bad:1:1: .*\n.*bad:1:1: "));
}

}  // namespace
}  // namespace ballast::server
