#include "server/server_storage.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/io/engine_files.h"
#include "server/convert/plan_convert.h"
#include "server/host/storage_warnings.h"
#include "server/jobs/job_number.h"
#include "server/meta/rocksdb_store.h"
#include "server/registration.h"

namespace ballast::server {
namespace {

// Room for the metadata store on an otherwise full disk: one record and its log.
constexpr uint64_t kReserveBytes = uint64_t{4} << 20;
// Size of the files that RocksDB writes when it opens, and of some log.
constexpr uint64_t kMetaRoomBytes = uint64_t{1} << 20;

IoOptions IoOptionsOf(const config::v1::Aio& aio) {
  return {.block_bytes = static_cast<size_t>(aio.block_size()),
          .queue_depth = static_cast<int>(aio.queue_depth())};
}

// Registers the metadata store's transactions as calls for its directory: it writes by itself.
class WatchedMeta : public MetaStore {
 public:
  WatchedMeta(std::unique_ptr<MetaStore> below, std::string directory,
              std::shared_ptr<CallsUnderWay> calls)
      : below_(std::move(below)), directory_(std::move(directory)), calls_(std::move(calls)) {}

  absl::StatusOr<std::optional<MetaEntry>> Get(absl::string_view key) override {
    return below_->Get(key);
  }
  absl::StatusOr<MetaPage> List(const MetaListRequest& request) override {
    return below_->List(request);
  }
  absl::StatusOr<MetaTxnResult> Txn(const MetaTxn& txn) override {
    const uint64_t number = calls_->Begin("a transaction", directory_);
    absl::StatusOr<MetaTxnResult> result = below_->Txn(txn);
    calls_->End(number);
    return result;
  }

 private:
  const std::unique_ptr<MetaStore> below_;
  const std::string directory_;
  const std::shared_ptr<CallsUnderWay> calls_;
};

// The owner's name for a data directory, among those that share a snapshot directory. The
// directory's first process derives it from its `incarnation`.
absl::StatusOr<std::string> SnapshotOwner(FileSystem* fs, const std::string& data_dir,
                                          uint64_t incarnation) {
  const std::string path = data_dir + "/snapshot-owner";
  const absl::StatusOr<std::string> known = ReadWholeFile(fs, path, 64);
  if (!absl::IsNotFound(known.status()) && !(known.ok() && known->empty())) return known;
  const std::string owner = JobIdText(incarnation);
  BALLAST_RETURN_IF_ERROR(ReplaceFile(fs, path, owner));
  return owner;
}

}  // namespace

ServerStorage::ServerStorage(const config::v1::ServerConfig& config, uint64_t incarnation,
                             std::function<void(const absl::Status&)> storage_failed)
    : config_(config),
      incarnation_(incarnation),
      storage_failed_(std::move(storage_failed)),
      calls_(std::make_shared<CallsUnderWay>(RealClock::Get())),
      engine_files_(EngineFileSystem(PosixFileSystem(), IoOptionsOf(config.aio()))),
      files_(WatchedFileSystem(
          engine_files_.get(), RealClock::Get(), {},
          [](const std::string& slow) { BALLAST_LOG(WARN) << slow; }, calls_)) {}

absl::StatusOr<std::unique_ptr<MetaStore>> ServerStorage::OpenMetadata(
    const std::string& data_dir) {
  RocksDbMetaStoreOptions options;
  options.directory = data_dir + "/meta";
  options.write_failed = [failed = storage_failed_](const absl::Status& status) {
    BALLAST_LOG(ERROR) << status.message();
    if (failed) failed(status);
  };
  reserve_.emplace(files_.get(), data_dir + "/reserve", kReserveBytes);
  reserve_->GiveIfShort();
  // RocksDB ends the process if its writes at startup fail.
  BALLAST_ASSIGN_OR_RETURN(const uint64_t free, files_->FreeBytes(data_dir));
  if (free < kMetaRoomBytes) {
    return absl::UnavailableError(absl::StrCat(
        "storage.data_dir ", data_dir, " has ", free, " bytes free, and the metadata store needs ",
        kMetaRoomBytes, " to start; make room, and start the server again"));
  }
  BALLAST_ASSIGN_OR_RETURN(std::unique_ptr<MetaStore> meta, OpenRocksDbMetaStore(options));
  return WithReserve(std::make_unique<WatchedMeta>(std::move(meta), options.directory, calls_),
                     &*reserve_);
}

absl::StatusOr<std::unique_ptr<JobStore>> ServerStorage::OpenJobs(const std::string& address) {
  const std::string& data_dir = config_.storage().data_dir();
  if (data_dir.empty()) return nullptr;
  BALLAST_RETURN_IF_ERROR(files_->MakeDirectory(data_dir));
  for (const std::string& warning : StorageWarnings(ReadStorageFacts(files_.get(), data_dir))) {
    BALLAST_LOG(WARN) << warning;
  }
  BALLAST_ASSIGN_OR_RETURN(meta_, OpenMetadata(data_dir));
  BALLAST_RETURN_IF_ERROR(RegisterServer(meta_.get(), config_.cluster().id(), data_dir,
                                         DescribeServer(address, data_dir)));
  return std::make_unique<JobStore>(files_.get(), data_dir + "/jobs", meta_.get(),
                                    config_.cluster().id(), config_.storage().checkpoint_rounds(),
                                    MakePlanCodec(), RandomId);
}

absl::StatusOr<DirectorySnapshots> ServerStorage::OpenSnapshots(size_t servers) {
  DirectorySnapshots snapshots;
  const std::string& data_dir = config_.storage().data_dir();
  if (data_dir.empty()) return snapshots;
  const std::string& shared = config_.storage().snapshot_dir();
  snapshots.codec = MakePlanCodec();
  BALLAST_ASSIGN_OR_RETURN(std::string owner, SnapshotOwner(files_.get(), data_dir, incarnation_));
  const std::string root = shared.empty() ? data_dir + "/snapshots" : shared;
  snapshots.store =
      std::make_unique<SnapshotStore>(files_.get(), root, config_.cluster().id(), owner);
  const std::string& exports = config_.storage().export_dir();
  snapshots.exports =
      std::make_unique<Exports>(files_.get(), exports.empty() ? root + "/exports" : exports, owner);
  if (shared.empty() && servers > 1) {
    snapshots.refused = ReasonedError(
        absl::StatusCode::kFailedPrecondition, Reason::kUnsupported,
        absl::StrCat("a cluster of ", servers, " servers keeps no snapshots without ",
                     "storage.snapshot_dir: name one directory that all of them share"),
        {.server = static_cast<int>(config_.cluster().id())});
    return snapshots;
  }
  BALLAST_RETURN_IF_ERROR(snapshots.store->Clear());
  BALLAST_RETURN_IF_ERROR(snapshots.exports->Clear());
  return snapshots;
}

}  // namespace ballast::server
