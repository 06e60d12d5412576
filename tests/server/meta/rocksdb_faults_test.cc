// The RocksDB back-end on a disk that loses power or refuses to sync.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/sync.h"
#include "tests/server/meta/store_folder.h"

namespace ballast::server {
namespace {

namespace fs = std::filesystem;

// How much of each of RocksDB's logs is on the disk, and whether syncing works. Thread-safe.
class LogDisk {
 public:
  void Synced(const std::string& path, uint64_t bytes) {
    MutexLock lock(&mu_);
    synced_[path] = bytes;
  }
  std::map<std::string, uint64_t> synced() {
    MutexLock lock(&mu_);
    return synced_;
  }
  void FailSyncs(bool fail) {
    MutexLock lock(&mu_);
    fail_syncs_ = fail;
  }
  bool fail_syncs() {
    MutexLock lock(&mu_);
    return fail_syncs_;
  }

 private:
  Mutex mu_;
  std::map<std::string, uint64_t> synced_ ABSL_GUARDED_BY(mu_);
  bool fail_syncs_ ABSL_GUARDED_BY(mu_) = false;
};

class WatchedLog : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  WatchedLog(std::unique_ptr<rocksdb::FSWritableFile> file, std::string path, LogDisk* disk)
      : FSWritableFileOwnerWrapper(std::move(file)), path_(std::move(path)), disk_(disk) {
    disk_->Synced(path_, 0);
  }
  rocksdb::IOStatus Sync(const rocksdb::IOOptions& options,
                         rocksdb::IODebugContext* debug) override {
    if (disk_->fail_syncs()) return rocksdb::IOStatus::IOError("sync refused by the test");
    const rocksdb::IOStatus status = FSWritableFileOwnerWrapper::Sync(options, debug);
    if (status.ok()) disk_->Synced(path_, GetFileSize(options, debug));
    return status;
  }
  rocksdb::IOStatus Fsync(const rocksdb::IOOptions& options,
                          rocksdb::IODebugContext* debug) override {
    return Sync(options, debug);
  }

 private:
  const std::string path_;
  LogDisk* const disk_;
};

class WatchedFileSystem : public rocksdb::FileSystemWrapper {
 public:
  explicit WatchedFileSystem(LogDisk* disk)
      : FileSystemWrapper(rocksdb::FileSystem::Default()), disk_(disk) {}
  const char* Name() const override { return "WatchedFileSystem"; }
  rocksdb::IOStatus NewWritableFile(const std::string& path, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* file,
                                    rocksdb::IODebugContext* debug) override {
    rocksdb::IOStatus status = FileSystemWrapper::NewWritableFile(path, options, file, debug);
    if (status.ok() && absl::EndsWith(path, ".log")) {
      *file = std::make_unique<WatchedLog>(std::move(*file), path, disk_);
    }
    return status;
  }

 private:
  LogDisk* const disk_;
};

class RocksDbFaults : public testing::Test {
 protected:
  void SetUp() override {
    auto store = OpenStore(folder_.store(), env_.get());
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }

  // A copy of the directory in which logs end where they were last synced.
  std::string AfterPowerLoss() {
    const std::string copy = absl::StrCat(folder_.path(), "/copy", ++copies_);
    fs::copy(folder_.store(), copy);
    for (const auto& [path, bytes] : disk_.synced()) {
      const fs::path log = fs::path(copy) / fs::path(path).filename();
      if (fs::exists(log)) fs::resize_file(log, bytes);
    }
    return copy;
  }

  const StoreFolder folder_;
  LogDisk disk_;
  const std::unique_ptr<rocksdb::Env> env_ =
      rocksdb::NewCompositeEnv(std::make_shared<WatchedFileSystem>(&disk_));
  std::unique_ptr<MetaStore> store_;
  int copies_ = 0;
};

TEST_F(RocksDbFaults, CommittedWritesSurvivePowerLoss) {
  for (uint64_t revision = 1; revision <= 5; ++revision) {
    const std::string value = absl::StrCat("value ", revision);
    const auto result = store_->Txn(PutAlways("key", value));
    ASSERT_TRUE(result.ok() && result->committed) << result.status();
    auto survivor = OpenStore(AfterPowerLoss());
    ASSERT_TRUE(survivor.ok()) << survivor.status();
    EXPECT_EQ(ValueOf(survivor->get(), "key"), value);
    const auto now = (*survivor)->Txn(MetaTxn{});
    ASSERT_TRUE(now.ok()) << now.status();
    EXPECT_EQ(now->revision, revision);
  }
}

TEST_F(RocksDbFaults, ANewStoreSurvivesPowerLossToo) {
  auto survivor = OpenStore(AfterPowerLoss());
  ASSERT_TRUE(survivor.ok()) << survivor.status();
  EXPECT_EQ(ValueOf(survivor->get(), "key"), "(absent)");
}

TEST_F(RocksDbFaults, AfterAFailedSyncNothingIsWrittenUntilTheStoreIsOpenedAnew) {
  ASSERT_TRUE(store_->Txn(PutAlways("a", "1")).ok());
  disk_.FailSyncs(true);
  const absl::Status failed = store_->Txn(PutAlways("b", "2")).status();
  EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable) << failed;
  EXPECT_THAT(std::string(failed.message()), testing::HasSubstr("sync refused by the test"));
  EXPECT_THAT(std::string(failed.message()), testing::HasSubstr(folder_.store()));
  disk_.FailSyncs(false);
  const absl::Status later = store_->Txn(PutAlways("c", "3")).status();
  EXPECT_EQ(later.code(), absl::StatusCode::kUnavailable) << later;
  EXPECT_THAT(std::string(later.message()), testing::HasSubstr("an earlier write"));
  EXPECT_EQ(ValueOf(store_.get(), "a"), "1") << "reads continue";

  store_.reset();
  auto store = OpenStore(folder_.store(), env_.get());
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ(ValueOf(store->get(), "a"), "1");
  EXPECT_EQ(ValueOf(store->get(), "c"), "(absent)");
  const auto now = (*store)->Txn(MetaTxn{});
  ASSERT_TRUE(now.ok()) << now.status();
  const auto next = (*store)->Txn(PutAlways("c", "3"));
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(next->revision, now->revision + 1);
}

// Of a write whose sync failed, or of a process that was killed before it: the next one reads it
// from the cache, and others build on it.
TEST_F(RocksDbFaults, ReadsOfAnOpenedStoreSurvivePowerLoss) {
  ASSERT_TRUE(store_->Txn(PutAlways("a", "1")).ok());
  disk_.FailSyncs(true);
  EXPECT_FALSE(store_->Txn(PutAlways("a", "2")).ok());
  disk_.FailSyncs(false);
  store_.reset();
  const auto store = OpenStore(folder_.store(), env_.get());
  ASSERT_TRUE(store.ok()) << store.status();
  const std::string shown = ValueOf(store->get(), "a");
  const auto survivor = OpenStore(AfterPowerLoss());
  ASSERT_TRUE(survivor.ok()) << survivor.status();
  EXPECT_EQ(ValueOf(survivor->get(), "a"), shown);
}

TEST_F(RocksDbFaults, AFailedWriteIsToldOnce) {
  store_.reset();
  RocksDbMetaStoreOptions options;
  options.directory = folder_.store();
  options.env = env_.get();
  std::vector<absl::Status> told;
  options.write_failed = [&told](const absl::Status& status) { told.push_back(status); };
  const auto store = OpenRocksDbMetaStore(options);
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_TRUE((*store)->Txn(PutAlways("a", "1")).ok());
  EXPECT_TRUE(told.empty());
  disk_.FailSyncs(true);
  const absl::Status failed = (*store)->Txn(PutAlways("a", "2")).status();
  EXPECT_FALSE((*store)->Txn(PutAlways("a", "3")).ok());
  EXPECT_THAT(told, testing::ElementsAre(failed));
  disk_.FailSyncs(false);
}

}  // namespace
}  // namespace ballast::server
