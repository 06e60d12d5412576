// What only the RocksDB back-end promises: restarts, one owner at a time, and damage that is named.
#include "server/meta/rocksdb_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rocksdb/db.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/bytes/crc32c.h"
#include "server/meta/committed_mark.h"
#include "server/meta/value_codec.h"
#include "tests/server/meta/store_folder.h"

namespace ballast::server {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

// Opens the store, commits one put per key, each its own revision, and closes it.
void WriteStore(const std::string& directory, const std::vector<std::string>& keys) {
  auto store = OpenStore(directory);
  ASSERT_TRUE(store.ok()) << store.status();
  for (const std::string& key : keys) {
    ASSERT_TRUE((*store)->Txn(PutAlways(key, "value of " + key)).ok());
  }
}

// Lets `change` edit the store below our back-end.
template <typename Change>
void EditRaw(const std::string& directory, Change change) {
  rocksdb::DB* opened = nullptr;
  const rocksdb::Status status = rocksdb::DB::Open(rocksdb::Options(), directory, &opened);
  ASSERT_TRUE(status.ok()) << status.ToString();
  const std::unique_ptr<rocksdb::DB> db(opened);
  change(db.get());
}

void FlipByte(rocksdb::DB* db, const std::string& key, size_t offset) {
  std::string stored;
  ASSERT_TRUE(db->Get(rocksdb::ReadOptions(), key, &stored).ok());
  stored[offset] = static_cast<char>(stored[offset] ^ 0x20);
  ASSERT_TRUE(db->Put(rocksdb::WriteOptions(), key, stored).ok());
}

// Files of the store whose names end so.
std::vector<fs::path> FilesEndingIn(const std::string& directory, const std::string& ending) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (absl::EndsWith(entry.path().filename().string(), ending)) files.push_back(entry.path());
  }
  return files;
}

void ExpectOpenFails(const std::string& directory, absl::StatusCode code, const std::string& text) {
  const auto store = OpenStore(directory);
  ASSERT_EQ(store.status().code(), code) << store.status();
  EXPECT_THAT(std::string(store.status().message()), AllOf(HasSubstr(directory), HasSubstr(text)));
}

TEST(RocksDbMetaStore, EverythingIsThereAfterARestart) {
  const StoreFolder folder;
  WriteStore(folder.store(), {"a", "b", "a"});
  auto store = OpenStore(folder.store());
  ASSERT_TRUE(store.ok()) << store.status();
  const auto entry = (*store)->Get("a");
  ASSERT_TRUE(entry.ok() && entry->has_value());
  EXPECT_EQ(**entry, (MetaEntry{"a", "value of a", 1, 3}));
  EXPECT_EQ(ValueOf(store->get(), "b"), "value of b");
}

TEST(RocksDbMetaStore, RevisionsContinueAfterARestartEvenAfterADelete) {
  const StoreFolder folder;
  WriteStore(folder.store(), {"a", "b"});
  for (uint64_t revision = 3; revision < 8; ++revision) {
    auto store = OpenStore(folder.store());
    ASSERT_TRUE(store.ok()) << store.status();
    MetaTxn txn;
    if (revision % 2 == 1) txn.deletes = {"b"};
    if (revision % 2 == 0) txn.puts = {{"b", "again"}};
    const auto result = (*store)->Txn(txn);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->revision, revision);
  }
}

TEST(RocksDbMetaStore, ASecondOpenerIsRefusedAndTheFirstGoesOn) {
  const StoreFolder folder;
  auto first = OpenStore(folder.store());
  ASSERT_TRUE(first.ok()) << first.status();
  ExpectOpenFails(folder.store(), absl::StatusCode::kUnavailable, "another process");
  EXPECT_TRUE((*first)->Txn(PutAlways("a", "1")).ok());
  first->reset();
  EXPECT_TRUE(OpenStore(folder.store()).ok()) << "the destructor frees the directory";
}

TEST(RocksDbMetaStore, AnotherProcessThatHoldsTheLockIsNamedAsTheCause) {
  const StoreFolder folder;
  WriteStore(folder.store(), {"a"});
  const std::string lock = folder.store() + "/LOCK";
  int ready[2];
  int release[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(release), 0);
  const pid_t child = fork();
  if (child == 0) {
    // Only calls allowed in a child of a process with threads.
    close(release[1]);
    struct flock whole = {};
    whole.l_type = F_WRLCK;
    const int file = open(lock.c_str(), O_RDWR);
    char byte = fcntl(file, F_SETLK, &whole) == 0 ? 'y' : 'n';
    if (write(ready[1], &byte, 1) != 1) _exit(1);
    _exit(read(release[0], &byte, 1) == 0 ? 0 : 1);
  }
  ASSERT_GT(child, 0);
  char locked = 0;
  EXPECT_EQ(read(ready[0], &locked, 1), 1);
  EXPECT_EQ(locked, 'y');
  ExpectOpenFails(folder.store(), absl::StatusCode::kUnavailable, "another process");
  for (const int end : {release[1], release[0], ready[0], ready[1]}) close(end);
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(OpenStore(folder.store()).ok());
}

TEST(RocksDbMetaStore, APlaceWhereNothingCanBeMadeIsUnavailable) {
  const StoreFolder folder;
  std::ofstream(folder.path() + "/file") << "text";
  ExpectOpenFails(folder.path() + "/file", absl::StatusCode::kUnavailable, "");
  ExpectOpenFails(folder.path() + "/file/below", absl::StatusCode::kUnavailable, "");
  EXPECT_EQ(OpenStore("").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(RocksDbMetaStore, AFlippedByteInAValueIsDataLossThatNamesKeyAndDirectory) {
  for (const size_t offset : {0, 5, 8, 12, 20, 30, 32}) {
    const StoreFolder folder;
    WriteStore(folder.store(), {"a", "b"});
    EditRaw(folder.store(), [&](rocksdb::DB* db) { FlipByte(db, "a", offset); });
    auto store = OpenStore(folder.store());
    ASSERT_TRUE(store.ok()) << store.status();
    const auto names_both = AllOf(HasSubstr("'a'"), HasSubstr(folder.store()));
    const std::vector<absl::Status> results = {
        (*store)->Get("a").status(), (*store)->List({}).status(),
        (*store)->Txn(PutOnce("a", "new")).status(), (*store)->Txn(PutAlways("a", "new")).status()};
    for (const absl::Status& result : results) {
      EXPECT_EQ(result.code(), absl::StatusCode::kDataLoss) << "offset " << offset << result;
      EXPECT_THAT(std::string(result.message()), names_both);
    }
    EXPECT_EQ(ValueOf(store->get(), "b"), "value of b") << "other keys stay readable";
  }
}

TEST(RocksDbMetaStore, AValueUnderAnotherKeyIsDataLoss) {
  const StoreFolder folder;
  WriteStore(folder.store(), {"a", "b"});
  EditRaw(folder.store(), [&](rocksdb::DB* db) {
    std::string stored;
    ASSERT_TRUE(db->Get(rocksdb::ReadOptions(), "a", &stored).ok());
    ASSERT_TRUE(db->Put(rocksdb::WriteOptions(), "b", stored).ok());
  });
  auto store = OpenStore(folder.store());
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_TRUE(absl::IsDataLoss((*store)->Get("b").status()));
}

// `entry` as another release would store it: another version, and a checksum that fits.
std::string OfVersionTwo(const MetaEntry& entry) {
  std::string stored = EncodeMetaValue(entry);
  stored[8] = 2;
  std::string covered(4, '\0');
  covered[0] = static_cast<char>(entry.key.size());
  covered += entry.key + stored.substr(8);
  const uint32_t crc = Crc32c(covered.data(), covered.size());
  for (int i = 0; i < 4; ++i) stored[4 + i] = static_cast<char>(crc >> (8 * i));
  return stored;
}

TEST(RocksDbMetaStore, AValueOfAnUnknownVersionIsRefused) {
  const StoreFolder folder;
  WriteStore(folder.store(), {"a"});
  EditRaw(folder.store(), [&](rocksdb::DB* db) {
    ASSERT_TRUE(db->Put(rocksdb::WriteOptions(), "a", OfVersionTwo({"a", "v", 1, 1})).ok());
  });
  auto store = OpenStore(folder.store());
  ASSERT_TRUE(store.ok()) << store.status();
  const absl::Status status = (*store)->Get("a").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("format version 2"), HasSubstr(folder.store())));
}

TEST(RocksDbMetaStore, AStoreOfAnUnknownVersionIsNotOpened) {
  const StoreFolder folder;
  WriteStore(folder.store(), {"a"});
  EditRaw(folder.store(), [&](rocksdb::DB* db) {
    const MetaEntry newest{kMetaRevisionKey, "", 0, 1};
    ASSERT_TRUE(db->Put(rocksdb::WriteOptions(), kMetaRevisionKey, OfVersionTwo(newest)).ok());
  });
  ExpectOpenFails(folder.store(), absl::StatusCode::kFailedPrecondition, "format version 2");
}

TEST(RocksDbMetaStore, ADamagedOrMissingRevisionIsDataLoss) {
  const StoreFolder folder;
  WriteStore(folder.store(), {"a"});
  EditRaw(folder.store(), [](rocksdb::DB* db) { FlipByte(db, kMetaRevisionKey, 24); });
  ExpectOpenFails(folder.store(), absl::StatusCode::kDataLoss, "revision");
  EditRaw(folder.store(), [](rocksdb::DB* db) {
    ASSERT_TRUE(db->Delete(rocksdb::WriteOptions(), kMetaRevisionKey).ok());
  });
  ExpectOpenFails(folder.store(), absl::StatusCode::kDataLoss, "not the newest revision");
}

TEST(RocksDbMetaStore, AStoreWhoseFilesAreGoneIsNeverCreatedAnew) {
  for (const std::string gone : {"CURRENT", "MANIFEST", ".log"}) {
    const StoreFolder folder;
    WriteStore(folder.store(), {"a", "b"});
    size_t removed = 0;
    for (const auto& entry : fs::directory_iterator(folder.store())) {
      if (absl::StrContains(entry.path().filename().string(), gone)) {
        removed += fs::remove(entry.path());
      }
    }
    ASSERT_GE(removed, 1u) << gone;
    ExpectOpenFails(folder.store(), absl::StatusCode::kDataLoss, "");
    ExpectOpenFails(folder.store(), absl::StatusCode::kDataLoss, "");
  }
}

TEST(RocksDbMetaStore, EachFlippedByteOfTheLogIsNoticed) {
  const StoreFolder folder;
  WriteStore(folder.store(), {"a", "b"});
  const std::vector<fs::path> logs = FilesEndingIn(folder.store(), ".log");
  ASSERT_EQ(logs.size(), 1u);
  const auto log_bytes = static_cast<size_t>(fs::file_size(logs[0]));
  const fs::path copy = folder.path() + "/copy";
  for (size_t offset = 0; offset < log_bytes; offset += 7) {
    fs::remove_all(copy);
    fs::copy(folder.store(), copy);
    {
      std::fstream log(copy / logs[0].filename(), std::ios::in | std::ios::out | std::ios::binary);
      log.seekg(static_cast<std::streamoff>(offset));
      const char byte = static_cast<char>(log.get() ^ 0x04);
      log.seekp(static_cast<std::streamoff>(offset));
      log.put(byte);
    }
    ExpectOpenFails(copy, absl::StatusCode::kDataLoss, "");
  }
  // Opening a damaged store must not have used up its log: the same error comes again.
  ExpectOpenFails(copy, absl::StatusCode::kDataLoss, "remove its file committed.mark");
  EXPECT_TRUE(OpenStore(folder.store()).ok());
}

TEST(RocksDbMetaStore, RemovingTheMarkAcceptsTheLoss) {
  const StoreFolder folder;
  WriteStore(folder.store(), {"a", "b"});
  const std::vector<fs::path> logs = FilesEndingIn(folder.store(), ".log");
  ASSERT_EQ(logs.size(), 1u);
  fs::resize_file(logs[0], fs::file_size(logs[0]) - 1);
  ExpectOpenFails(folder.store(), absl::StatusCode::kDataLoss, "newest revision is 1, but 2");
  fs::remove(folder.store() + "/" + kCommittedMarkName);
  auto store = OpenStore(folder.store());
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ(ValueOf(store->get(), "a"), "value of a");
  EXPECT_EQ(ValueOf(store->get(), "b"), "(absent)");
}

TEST(RocksDbMetaStore, ADamagedTableFileIsDataLoss) {
  const StoreFolder folder;
  WriteStore(folder.store(), {"a", "b"});
  EditRaw(folder.store(),
          [](rocksdb::DB* db) { ASSERT_TRUE(db->Flush(rocksdb::FlushOptions()).ok()); });
  const std::vector<fs::path> tables = FilesEndingIn(folder.store(), ".sst");
  ASSERT_GE(tables.size(), 1u);
  for (const fs::path& table : tables) {
    std::fstream file(table, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(2);
    file.put('\x7e').put('\x7e').put('\x7e');
  }
  ExpectOpenFails(folder.store(), absl::StatusCode::kDataLoss, "");
}

// RocksDB alone would end the process at some of these.
TEST(RocksDbMetaStore, EachFlippedBitOfATablesEndIsDataLoss) {
  const StoreFolder folder;
  WriteStore(folder.store(), {"a"});
  ASSERT_TRUE(OpenStore(folder.store()).ok());  // Makes a table of the log.
  const std::vector<fs::path> tables = FilesEndingIn(folder.store(), ".sst");
  ASSERT_GE(tables.size(), 1u);
  const std::string copy = folder.path() + "/copy";
  for (size_t bit = 0; bit < size_t{1000} * 8; bit += 7) {
    fs::remove_all(copy);
    fs::copy(folder.store(), copy);
    const fs::path table = fs::path(copy) / tables.front().filename();
    std::fstream file(table, std::ios::in | std::ios::out | std::ios::binary);
    const auto at = static_cast<std::streamoff>(fs::file_size(table) - 1 - bit / 8);
    file.seekg(at);
    const char flipped = static_cast<char>(file.get() ^ (1 << bit % 8));
    file.seekp(at).put(flipped);
    file.close();
    const absl::Status status = OpenStore(copy).status();
    ASSERT_EQ(status.code(), absl::StatusCode::kDataLoss) << "bit " << bit << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(table.filename().string()));
  }
}

TEST(RocksDbMetaStore, AGarbledMarkProvesNothing) {
  const StoreFolder folder;
  WriteStore(folder.store(), {"a"});
  const std::string mark = folder.store() + "/" + kCommittedMarkName;
  EXPECT_EQ(CommittedMark::Read(mark), std::optional<uint64_t>(1));
  for (uintmax_t bytes = 0; bytes < 16; ++bytes) {
    fs::resize_file(mark, bytes);
    EXPECT_EQ(CommittedMark::Read(mark), std::nullopt) << bytes;
    EXPECT_TRUE(OpenStore(folder.store()).ok()) << bytes;
    EXPECT_EQ(CommittedMark::Read(mark), std::optional<uint64_t>(1)) << "written anew";
  }
}

// The bytes of docs/formats/meta.md.
TEST(RocksDbMetaStore, RevisionRecordAndMarkOfVersionOneStayAsTheyAre) {
  const StoreFolder folder;
  WriteStore(folder.store(), {"a", "b", "c", "d", "e", "f", "g"});
  EditRaw(folder.store(), [](rocksdb::DB* db) {
    std::string stored;
    ASSERT_TRUE(db->Get(rocksdb::ReadOptions(), "\1revision", &stored).ok());
    EXPECT_EQ(absl::BytesToHexString(stored),
              "424c4d560076e7130100000000000000"
              "00000000000000000700000000000000");
  });
  std::ifstream file(folder.store() + "/committed.mark", std::ios::binary);
  const std::string mark{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(absl::BytesToHexString(mark), "424c4d438eb771760700000000000000");
}

TEST(RocksDbMetaStore, TheInfoLogsStayFew) {
  const StoreFolder folder;
  for (int i = 0; i < 8; ++i) WriteStore(folder.store(), {"a"});
  size_t logs = 0;
  for (const auto& entry : fs::directory_iterator(folder.store())) {
    logs += absl::StartsWith(entry.path().filename().string(), "LOG");
  }
  EXPECT_LE(logs, 5u);
}

}  // namespace
}  // namespace ballast::server
