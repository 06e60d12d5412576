// A full disk: the room set aside for the metadata store, and its return.
#include "server/meta/reserved_store.h"

#include <gtest/gtest.h>

#include "common/io/memory_disk.h"
#include "server/meta/memory_store.h"
#include "tests/server/meta/store_folder.h"

namespace ballast::server {
namespace {

constexpr char kPath[] = "/data/reserve";
constexpr uint64_t kBytes = 8192;

// Writes its transactions to a disk, as a store with a log does.
class LoggingStore : public MemoryMetaStore {
 public:
  explicit LoggingStore(MemoryDisk* disk) : disk_(disk) {}
  absl::StatusOr<MetaTxnResult> Txn(const MetaTxn& txn) override {
    const auto file =
        disk_->Open("/data/log-" + std::to_string(++written_), {.mode = OpenMode::kCreate});
    const absl::Status status = file.ok() ? (*file)->Allocate(kBytes / 2) : file.status();
    if (!status.ok()) return status;
    return MemoryMetaStore::Txn(txn);
  }

 private:
  MemoryDisk* const disk_;
  int written_ = 0;
};

class ReservedStoreTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(disk_.MakeDirectory("/data").ok()); }
  bool Held() {
    for (const std::string& path : disk_.Paths()) {
      if ("/" + path == kPath || path == kPath) return true;
    }
    return false;
  }
  // Room that others leave on the disk.
  void LeaveFree(uint64_t bytes) {
    disk_.SetCapacity(capacity_);
    const uint64_t used = capacity_ - *disk_.FreeBytes("/data");
    disk_.SetCapacity(used + bytes);
  }

  const uint64_t capacity_ = uint64_t{1} << 20;
  MemoryDisk disk_{capacity_};
  DiskReserve reserve_{&disk_, kPath, kBytes};
  const std::unique_ptr<MetaStore> store_ =
      WithReserve(std::make_unique<LoggingStore>(&disk_), &reserve_);
};

TEST_F(ReservedStoreTest, ATransactionFindsRoomOnAFullDiskAndTheReserveComesBack) {
  reserve_.TakeIfRoom();
  ASSERT_TRUE(Held());
  LeaveFree(0);
  const auto written = store_->Txn(PutAlways("key", "value"));
  ASSERT_TRUE(written.ok()) << written.status();
  EXPECT_FALSE(Held());
  EXPECT_EQ(ValueOf(store_.get(), "key"), "value");
  LeaveFree(2 * kBytes - 1 + kBytes / 2);
  ASSERT_TRUE(store_->Txn(PutAlways("key", "next")).ok());
  EXPECT_FALSE(Held()) << "it must not take what the next transaction needs";
  LeaveFree(4 * kBytes);
  ASSERT_TRUE(store_->Txn(PutAlways("key", "last")).ok());
  EXPECT_TRUE(Held());
}

TEST_F(ReservedStoreTest, WithRoomNothingIsGiven) {
  reserve_.TakeIfRoom();
  ASSERT_TRUE(store_->Txn(PutAlways("key", "value")).ok());
  EXPECT_TRUE(Held());
}

// One that starts on a full disk has it from the process before.
TEST_F(ReservedStoreTest, AReserveOfAnEarlierProcessIsGiven) {
  DiskReserve earlier(&disk_, kPath, kBytes);
  earlier.TakeIfRoom();
  LeaveFree(100);
  reserve_.GiveIfShort();
  EXPECT_FALSE(Held());
}

}  // namespace
}  // namespace ballast::server
