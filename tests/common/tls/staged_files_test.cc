// The private directory: whole sets only, old ones removed, nothing left over.
#include "common/tls/staged_files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/common/tls/certificates.h"

namespace ballast {
namespace {

std::string Read(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TlsFiles Numbered(int number) {
  return {{"", absl::StrCat("ca ", number)},
          {"", absl::StrCat("certificate ", number)},
          {"", absl::StrCat("key ", number)}};
}

class StagedFilesTest : public testing::Test {
 protected:
  ~StagedFilesTest() override { std::filesystem::remove_all(parent_); }

  const std::string parent_ = MakeFolder();
};

TEST_F(StagedFilesTest, ASetReplacesTheOneBefore) {
  auto staged = StagedFiles::Create(parent_);
  ASSERT_TRUE(staged.ok());
  const TlsPaths& paths = (*staged)->paths();
  int64_t time_before = 0;
  for (int number = 1; number <= 5; ++number) {
    ASSERT_TRUE((*staged)->Publish(Numbered(number)).ok());
    EXPECT_EQ(Read(paths.ca), absl::StrCat("ca ", number));
    EXPECT_EQ(Read(paths.certificate), absl::StrCat("certificate ", number));
    EXPECT_EQ(Read(paths.key), absl::StrCat("key ", number));
    struct stat facts = {};
    ASSERT_EQ(stat(paths.key.c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 0777, 0600U);
    EXPECT_GT(facts.st_mtim.tv_sec, time_before);
    time_before = facts.st_mtim.tv_sec;
  }
  // The present set, the one before, and the link.
  size_t entries = 0;
  for (const auto& entry : std::filesystem::directory_iterator((*staged)->directory())) {
    entries += entry.path().empty() ? 0 : 1;
  }
  EXPECT_EQ(entries, 3U);
}

TEST_F(StagedFilesTest, TheDirectoryIsPrivateAndGoesWithItsOwner) {
  auto staged = StagedFiles::Create(parent_);
  ASSERT_TRUE(staged.ok());
  struct stat facts = {};
  ASSERT_EQ(stat((*staged)->directory().c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0700U);
  ASSERT_TRUE((*staged)->Publish(Numbered(1)).ok());
  staged->reset();
  EXPECT_TRUE(std::filesystem::is_empty(parent_));
}

TEST_F(StagedFilesTest, AKilledOwnersFilesAreRemovedAndALivingOwnersStay) {
  const auto living = StagedFiles::Create(parent_);
  ASSERT_TRUE(living.ok());
  ASSERT_TRUE((*living)->Publish(Numbered(1)).ok());
  const pid_t child = fork();
  if (child == 0) {
    const auto killed = StagedFiles::Create(parent_);
    _exit(killed.ok() && (*killed)->Publish(Numbered(2)).ok() ? 0 : 1);
  }
  int ended = -1;
  ASSERT_EQ(waitpid(child, &ended, 0), child);
  ASSERT_EQ(ended, 0);
  const auto count = [this] {
    return std::distance(std::filesystem::directory_iterator(parent_), {});
  };
  ASSERT_EQ(count(), 2);
  const auto next = StagedFiles::Create(parent_);
  ASSERT_TRUE(next.ok());
  EXPECT_EQ(count(), 2);
  EXPECT_TRUE(std::filesystem::exists((*next)->directory()));
  EXPECT_EQ(Read((*living)->paths().key), "key 1");
}

TEST_F(StagedFilesTest, AFailedWriteLeavesTheOldSet) {
  auto staged = StagedFiles::Create(parent_);
  ASSERT_TRUE(staged.ok());
  ASSERT_TRUE((*staged)->Publish(Numbered(1)).ok());
  WriteFile((*staged)->directory() + "/set-2", "in the way");
  EXPECT_EQ((*staged)->Publish(Numbered(2)).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(Read((*staged)->paths().key), "key 1");
  EXPECT_EQ(StagedFiles::Create(parent_ + "/none").status().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace ballast
