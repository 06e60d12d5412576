// The warnings about a machine at the start, and the reads that they follow from.
#include "server/host/storage_warnings.h"

#include <gtest/gtest.h>
#include <sys/statfs.h>

#include <string>
#include <vector>

#include "common/io/huge_pages.h"
#include "common/io/memory_disk.h"

namespace ballast::server {
namespace {

class NoDirectIo : public MemoryDisk {
 public:
  bool DirectIo(const std::string& /*directory*/) override { return false; }
};

TEST(StorageWarnings, AGoodMachineGetsNone) {
  EXPECT_TRUE(StorageWarnings({.data_dir = "/data", .huge_pages = "madvise"}).empty());
  EXPECT_TRUE(StorageWarnings({.data_dir = "/data", .huge_pages = "always"}).empty());
  EXPECT_TRUE(StorageWarnings({.data_dir = "/data"}).empty());  // Not known: nothing to say.
}

TEST(StorageWarnings, EachFactIsNamedWithItsPlaceAndWhatToDo) {
  const std::vector<std::string> warnings = StorageWarnings(
      {.data_dir = "/data", .in_memory = true, .direct_io = false, .huge_pages = "never"});
  ASSERT_EQ(warnings.size(), 3u);
  EXPECT_NE(warnings[0].find("/data is on a file system in memory (tmpfs)"), std::string::npos);
  EXPECT_NE(warnings[0].find("Use a directory on a local disk"), std::string::npos);
  EXPECT_NE(warnings[1].find("/data takes no direct I/O"), std::string::npos);
  EXPECT_NE(warnings[2].find("transparent_hugepage/enabled is never"), std::string::npos);
  EXPECT_NE(warnings[2].find("Set it to madvise"), std::string::npos);
}

TEST(StorageWarnings, ADeviceThatWantsLargerPiecesIsNamedWithThem) {
  const std::vector<std::string> warnings =
      StorageWarnings({.data_dir = "/data", .direct_io = false, .direct_io_bytes = 16384});
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("in pieces of 4096 bytes (its device wants 16384)"),
            std::string::npos);
}

TEST(StorageWarnings, ALimitOnFilesIsNamedWhereItIsBelowWhatTheDiskHasRoomFor) {
  StorageFacts facts{.data_dir = "/data", .free_bytes = 1000, .file_bytes_max = 999};
  ASSERT_EQ(StorageWarnings(facts).size(), 1u);
  EXPECT_NE(StorageWarnings(facts)[0].find("999 bytes at most (RLIMIT_FSIZE, ulimit -f)"),
            std::string::npos);
  facts.file_bytes_max = 1000;
  EXPECT_TRUE(StorageWarnings(facts).empty());
}

TEST(StorageWarnings, ReadsExistingFacts) {
  MemoryDisk disk;
  EXPECT_TRUE(ReadStorageFacts(&disk, "/").direct_io);
  EXPECT_FALSE(ReadStorageFacts(&disk, "/").in_memory) << "the root of this machine is a tmpfs";
  NoDirectIo other;
  EXPECT_FALSE(ReadStorageFacts(&other, "/").direct_io);
  struct statfs system = {};
  if (statfs("/dev/shm", &system) != 0 || system.f_type != 0x01021994) {
    GTEST_SKIP() << "/dev/shm is no tmpfs here";
  }
  EXPECT_TRUE(ReadStorageFacts(&disk, "/dev/shm").in_memory);
}

TEST(StorageWarnings, TheWordInBracketsIsInForce) {
  EXPECT_EQ(ChosenWord("always [madvise] never"), "madvise");
  EXPECT_EQ(ChosenWord("always madvise [never]"), "never");
  EXPECT_EQ(ChosenWord(""), "");
  EXPECT_EQ(ChosenWord("]["), "");
}

}  // namespace
}  // namespace ballast::server
