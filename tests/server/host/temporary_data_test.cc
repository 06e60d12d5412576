// Data directories of --dev: which of those that lie about are removed.
#include "server/host/temporary_data.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/host/data_dir_lock.h"

namespace ballast::server {
namespace {

namespace fs = std::filesystem;

class TemporaryDataTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "temporary_data_test-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    parent_ = name;
  }
  void TearDown() override { fs::remove_all(parent_); }

  // A directory with a file in it, and a lock file that holds `lock` unless it is absent.
  std::string Make(const std::string& name, std::optional<std::string> lock) {
    const fs::path path = parent_ / name;
    fs::create_directories(path / "jobs");
    std::ofstream(path / "jobs" / "slots") << "data";
    if (lock.has_value()) std::ofstream(path / "lock") << *lock;
    return path.string();
  }

  fs::path parent_;
};

TEST_F(TemporaryDataTest, GoesWithItsOwner) {
  {
    absl::StatusOr<TemporaryData> made = TemporaryData::Create(parent_.string());
    ASSERT_TRUE(made.ok()) << made.status();
    const TemporaryData data = *std::move(made);
    std::ofstream(data.path() + "/file") << "x";
    EXPECT_THAT(data.path(), testing::StartsWith((parent_ / "ballast-dev-").string()));
  }
  EXPECT_TRUE(fs::is_empty(parent_));
  const absl::Status status = TemporaryData::Create((parent_ / "none").string()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(status.message(), testing::HasSubstr("none/ballast-dev-"));
}

TEST_F(TemporaryDataTest, ADeadOwnersFilesAreRemoved) {
  const std::string dead = Make("ballast-dev-dead00", "17\n");
  EXPECT_THAT(RemoveStaleTemporaryData(parent_.string()), testing::ElementsAre(dead));
  EXPECT_TRUE(fs::is_empty(parent_));
  EXPECT_THAT(RemoveStaleTemporaryData(parent_.string()), testing::IsEmpty());
}

TEST_F(TemporaryDataTest, ADirectoryInUseStays) {
  const std::string used = Make("ballast-dev-used00", std::nullopt);
  {
    const absl::StatusOr<DataDirLock> lock = DataDirLock::Take(used);
    ASSERT_TRUE(lock.ok()) << lock.status();
    EXPECT_THAT(RemoveStaleTemporaryData(parent_.string()), testing::IsEmpty());
    EXPECT_TRUE(fs::exists(used + "/jobs/slots"));
  }
  EXPECT_THAT(RemoveStaleTemporaryData(parent_.string()), testing::ElementsAre(used));
}

TEST_F(TemporaryDataTest, YoungOrForeignFilesStay) {
  Make("ballast-dev-new000", std::nullopt);  // its owner has not come to its lock yet
  Make("ballast-dev-newer0", "");            // its owner is about to lock it
  Make("ballast-run-other0", "17\n");
  const std::string kept = Make("kept", "17\n");
  fs::create_directory_symlink(kept, parent_ / "ballast-dev-link00");
  const std::string linked = Make("ballast-dev-lock00", std::nullopt);
  fs::create_symlink(kept + "/lock", linked + "/lock");
  std::ofstream(parent_ / "ballast-dev-file00") << "17\n";
  EXPECT_THAT(RemoveStaleTemporaryData(parent_.string()), testing::IsEmpty());
  EXPECT_EQ(std::distance(fs::directory_iterator(parent_), {}), 7);
  EXPECT_TRUE(fs::exists(kept + "/jobs/slots"));
  EXPECT_THAT(RemoveStaleTemporaryData((parent_ / "none").string()), testing::IsEmpty());
}

}  // namespace
}  // namespace ballast::server
