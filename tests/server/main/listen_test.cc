// Addresses told to others, and the ready file.
#include "server/listen.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast::server {
namespace {

TEST(ListenTest, TheToldAddressHasTheBoundPort) {
  EXPECT_EQ(ToldAddress("127.0.0.1:0", "", 4000).value(), "127.0.0.1:4000");
  EXPECT_EQ(ToldAddress("[::1]:0", "", 4000).value(), "[::1]:4000");
  EXPECT_EQ(ToldAddress("0.0.0.0:0", "host-a:0", 4000).value(), "host-a:4000");
  EXPECT_EQ(ToldAddress("0.0.0.0:0", "host-a:70", 4000).value(), "host-a:70");
  EXPECT_FALSE(ToldAddress("nonsense", "", 4000).ok());
}

TEST(ListenTest, AServerThatStrangersReachSaysSo) {
  config::v1::ServerConfig config;
  config.mutable_listen()->set_address("127.0.0.1:7000");
  EXPECT_EQ(OpenNetworkWarning(config, "a:7000"), "");
  config.mutable_listen()->set_address("0.0.0.0:7000");
  EXPECT_THAT(OpenNetworkWarning(config, "a:7000"),
              testing::HasSubstr("every process that reaches a:7000"));
  config.mutable_security()->set_mode(config::v1::SECURITY_MODE_TLS);
  EXPECT_EQ(OpenNetworkWarning(config, "a:7000"), "");
}

TEST(ListenTest, TheReadyFileIsWrittenWholeOrNotAtAll) {
  const auto folder =
      std::filesystem::temp_directory_path() /
      ("listen_test_" + std::to_string(::testing::UnitTest::GetInstance()->random_seed()) +
       std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  const std::string path = folder / "ready.json";
  ASSERT_TRUE(WriteReadyFile(path, {3, "127.0.0.1:1", ""}).ok());
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_THAT(text.str(),
              testing::StartsWith(R"({"id": 3, "address": "127.0.0.1:1", "admin": "", "pid": )"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  const absl::Status status = WriteReadyFile(folder / "none" / "ready.json", {});
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(status.message(), testing::HasSubstr("none"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace ballast::server
