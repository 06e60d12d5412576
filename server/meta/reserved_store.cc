#include "server/meta/reserved_store.h"

#include <utility>

#include "common/base/log.h"
#include "common/text/units.h"

namespace ballast::server {
namespace {

std::string ParentOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

class ReservedMetaStore : public MetaStore {
 public:
  ReservedMetaStore(std::unique_ptr<MetaStore> store, DiskReserve* reserve)
      : store_(std::move(store)), reserve_(reserve) {}

  absl::StatusOr<std::optional<MetaEntry>> Get(absl::string_view key) override {
    return store_->Get(key);
  }
  absl::StatusOr<MetaPage> List(const MetaListRequest& request) override {
    return store_->List(request);
  }
  absl::StatusOr<MetaTxnResult> Txn(const MetaTxn& txn) override {
    reserve_->GiveIfShort();
    absl::StatusOr<MetaTxnResult> result = store_->Txn(txn);
    reserve_->TakeIfRoom();
    return result;
  }

 private:
  const std::unique_ptr<MetaStore> store_;
  DiskReserve* const reserve_;
};

}  // namespace

void DiskReserve::GiveIfShort() {
  const absl::StatusOr<uint64_t> free = fs_->FreeBytes(ParentOf(path_));
  if (!free.ok() || *free >= bytes_) return;
  MutexLock lock(&mu_);
  held_ = false;
  if (!fs_->Remove(path_).ok()) return;  // It is given already.
  BALLAST_LOG(WARN) << "the disk is full: " << FormatBytes(*free) << " are free at " << path_
                    << "; its reserve of " << FormatBytes(bytes_)
                    << " is given to the metadata store. Make room";
}

void DiskReserve::TakeIfRoom() {
  MutexLock lock(&mu_);
  if (held_) return;
  const absl::StatusOr<uint64_t> free = fs_->FreeBytes(ParentOf(path_));
  if (!free.ok() || *free < 2 * bytes_) return;
  const auto file = fs_->Open(path_, {.mode = OpenMode::kCreate});
  absl::Status status = file.status();
  if (status.ok()) status = (*file)->Allocate(bytes_);
  held_ = status.ok();
  if (status.ok()) return;
  fs_->Remove(path_).IgnoreError();  // A part of a reserve is none.
  BALLAST_LOG(WARN) << "no reserve for the metadata store: " << status;
}

std::unique_ptr<MetaStore> WithReserve(std::unique_ptr<MetaStore> store, DiskReserve* reserve) {
  return std::make_unique<ReservedMetaStore>(std::move(store), reserve);
}

}  // namespace ballast::server
