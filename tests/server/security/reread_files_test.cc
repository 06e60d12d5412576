// Files that are read again: when, the state after a fault, and links as Kubernetes turns them.
#include "server/security/reread_files.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/system/guarded_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class RereadFilesTest : public testing::Test {
 protected:
  // Each test runs in a process of its own, several at a time: each has a folder of its own.
  RereadFilesTest() : folder_(absl::StrCat(testing::TempDir(), "reread_files-", getpid())) {
    std::filesystem::create_directory(folder_);
    Write("file", "first");
  }
  ~RereadFilesTest() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(Path(name)) << text;
  }
  // Takes the file `name`, unless it says "bad".
  std::shared_ptr<RereadFiles> Files(const std::string& name = "file") {
    const std::string path = Path(name);
    auto files = std::make_shared<RereadFiles>(std::vector<RereadFiles::File>{
        {"setting", path, [this, path]() -> absl::Status {
           ++reads_;
           BALLAST_ASSIGN_OR_RETURN(const std::string text,
                                    ReadGuardedFile(path, FileGuard::kNone, 64));
           if (text == "bad") {
             return absl::InvalidArgumentError(path + ": bad");
           }
           taken_ = text;
           return absl::OkStatus();
         }}});
    files->Read();
    return files;
  }
  static void LookTwice(const std::shared_ptr<RereadFiles>& files) {
    files->Look();
    files->Look();
  }

  const std::string folder_;
  std::string taken_;
  int reads_ = 0;
};

TEST_F(RereadFilesTest, AFileIsReadAgainOnceItStandsStill) {
  const auto files = Files();
  LookTwice(files);
  EXPECT_EQ(reads_, 1);
  Write("file", "the second");
  files->Look();
  EXPECT_EQ(taken_, "first");  // It may be half-written yet.
  Write("file", "the second, whole");
  files->Look();
  EXPECT_EQ(taken_, "first");
  files->Look();
  EXPECT_EQ(taken_, "the second, whole");
  LookTwice(files);
  EXPECT_EQ(reads_, 2);
}

TEST_F(RereadFilesTest, ALinkThatIsTurnedToAnotherFileOfTheSameSizeCounts) {
  // A volume of Kubernetes: file -> ..data/file, ..data -> a folder of each version.
  for (const char* version : {"1", "2"}) {
    std::filesystem::create_directory(Path(version));
    Write(absl::StrCat(version, "/file"), absl::StrCat("text ", version));
  }
  std::filesystem::create_directory_symlink("1", Path("..data"));
  std::filesystem::create_symlink("..data/file", Path("link"));
  const auto files = Files("link");
  EXPECT_EQ(taken_, "text 1");
  std::filesystem::create_directory_symlink("2", Path("..data_tmp"));
  std::filesystem::rename(Path("..data_tmp"), Path("..data"));
  LookTwice(files);
  EXPECT_EQ(taken_, "text 2");
}

TEST_F(RereadFilesTest, AFaultKeepsTheOldContentAndIsReportedUntilFixed) {
  const auto files = Files();
  EXPECT_THAT(files->faults(), IsEmpty());
  Write("file", "bad");
  LookTwice(files);
  EXPECT_EQ(taken_, "first");
  EXPECT_THAT(files->faults(), ElementsAre(HasSubstr("file: bad")));
  std::remove(Path("file").c_str());
  LookTwice(files);
  EXPECT_THAT(files->faults(), ElementsAre(HasSubstr("cannot be read: No such file")));
  EXPECT_EQ(taken_, "first");
  Write("file", "mended");
  LookTwice(files);
  EXPECT_THAT(files->faults(), IsEmpty());
  EXPECT_EQ(taken_, "mended");
}

TEST_F(RereadFilesTest, OnRequestAllAreReadAtOnceAndEachHasItsOutcome) {
  const auto files = Files();
  Write("file", "asked for");
  std::vector<FileOutcome> outcomes = files->Read();
  ASSERT_EQ(outcomes.size(), 1u);
  EXPECT_EQ(outcomes[0].setting, "setting");
  EXPECT_EQ(outcomes[0].path, Path("file"));
  EXPECT_TRUE(outcomes[0].status.ok());
  EXPECT_EQ(taken_, "asked for");
  Write("file", "bad");
  EXPECT_TRUE(absl::IsInvalidArgument(files->Read()[0].status));
  EXPECT_EQ(files->faults().size(), 1u);
}

TEST_F(RereadFilesTest, AfterTheStopNothingIsRead) {
  const auto files = Files();
  files->Stop();
  Write("file", "too late");
  LookTwice(files);
  EXPECT_THAT(files->Read(), IsEmpty());
  EXPECT_EQ(taken_, "first");
}

}  // namespace
}  // namespace ballast::server
