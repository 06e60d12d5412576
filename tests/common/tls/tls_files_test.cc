// Files of certificates as such: modes, sizes, halves of pairs.
#include "common/tls/tls_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "tests/common/tls/certificates.h"

namespace ballast {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

const TlsPaths kLabels{"CA", "CERT", "KEY"};

class TlsFilesTest : public testing::Test {
 protected:
  ~TlsFilesTest() override { std::filesystem::remove_all(folder_); }

  std::string At(const std::string& name) const { return folder_ + "/" + name; }

  const std::string folder_ = MakeFolder();
};

TEST_F(TlsFilesTest, ASecretIsReadableByItsOwnerOnly) {
  for (const unsigned mode : {0600U, 0400U, 0700U}) {
    WriteFile(At("key"), "secret", mode);
    EXPECT_TRUE(ReadTlsFile(At("key"), true).ok()) << mode;
  }
  for (const unsigned mode : {0644U, 0604U, 0620U, 0602U}) {
    WriteFile(At("key"), "secret", mode);
    const absl::Status status = ReadTlsFile(At("key"), true).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << mode;
    EXPECT_THAT(std::string(status.message()), HasSubstr("chmod 0600"));
    EXPECT_TRUE(ReadTlsFile(At("key"), false).ok()) << mode;
  }
}

// Kubernetes mounts secrets as root's, readable by the group of the pod.
TEST_F(TlsFilesTest, AGroupMayReadASecretOfRoot) {
  WriteFile(At("key"), "secret", 0640);
  EXPECT_EQ(ReadTlsFile(At("key"), true).ok(), getuid() == 0);
}

TEST_F(TlsFilesTest, ANonFileIsNamed) {
  EXPECT_EQ(ReadTlsFile(At("none"), false).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadTlsFile(folder_, false).status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(mkfifo(At("pipe").c_str(), 0600), 0);
  EXPECT_EQ(ReadTlsFile(At("pipe"), false).status().code(), absl::StatusCode::kInvalidArgument);
  WriteFile(At("large"), std::string(kTlsFileBytesMax + 1, 'x'));
  EXPECT_THAT(std::string(ReadTlsFile(At("large"), false).status().message()),
              HasSubstr("larger than the limit of 1048576 bytes"));
}

TEST_F(TlsFilesTest, HalfAPairIsRefusedByTheNameOfItsSetting) {
  WriteFile(At("f"), "x");
  const auto refusal = [](const TlsPaths& paths) {
    return std::string(ReadTlsFiles(paths, kLabels).status().message());
  };
  EXPECT_THAT(refusal({At("f"), At("f"), ""}), StartsWith("KEY is missing beside CERT"));
  EXPECT_THAT(refusal({At("f"), "", At("f")}), StartsWith("CERT is missing beside KEY"));
  EXPECT_THAT(refusal({"", At("f"), At("f")}), StartsWith("CA is missing beside CERT"));
  EXPECT_TRUE(ReadTlsFiles({At("f"), "", ""}, kLabels).ok());
}

TEST_F(TlsFilesTest, ATokenIsOneLine) {
  WriteFile(At("token"), "0123456789abcdef\n");
  EXPECT_EQ(ReadTokenFile(At("token")).value(), "0123456789abcdef");
  for (const char* bad :
       {"", "\n", "short", "0123456789abcdef\n\n", "0123456789 abcdef", "0123456789abcdef\r\n"}) {
    WriteFile(At("token"), bad);
    const absl::Status status = ReadTokenFile(At("token")).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(status.message()), StartsWith(At("token")));
  }
  WriteFile(At("token"), "0123456789abcdef\n", 0644);
  EXPECT_EQ(ReadTokenFile(At("token")).status().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(TlsFilesTest, TheSignatureChangesWithEachReplacement) {
  WriteFile(At("f"), "x");
  const TlsPaths paths{At("f"), "", ""};
  const std::string before = SignatureOf(paths);
  EXPECT_EQ(SignatureOf(paths), before);
  WriteFile(At("g"), "y");
  std::filesystem::rename(At("g"), At("f"));
  EXPECT_NE(SignatureOf(paths), before);
  std::filesystem::remove(At("f"));
  EXPECT_NE(SignatureOf(paths), before);
}

}  // namespace
}  // namespace ballast
