#include "server/meta/rocksdb_store.h"

#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/file_checksum.h>
#include <rocksdb/table.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/base/sync.h"
#include "common/io/file_error.h"
#include "server/meta/committed_mark.h"
#include "server/meta/request_checks.h"
#include "server/meta/table_sums.h"
#include "server/meta/value_codec.h"

namespace ballast::server {
namespace {

rocksdb::Slice ToSlice(absl::string_view text) { return {text.data(), text.size()}; }
absl::string_view ToView(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

// Errors of one store; each message begins with its directory.
class Errors {
 public:
  explicit Errors(std::string directory) : directory_(std::move(directory)) {}

  absl::Status Lost(absl::string_view what) const {
    return ReasonedError(
        absl::StatusCode::kDataLoss, Reason::kStateLost,
        absl::StrCat("metadata store ", directory_, ": ", what,
                     "; nothing was repaired or created: keep the directory, and restore it from a "
                     "backup"));
  }
  absl::Status Unavailable(absl::string_view what) const {
    return absl::UnavailableError(absl::StrCat("metadata store ", directory_, ": ", what));
  }
  // An error of RocksDB; `doing` names the attempt.
  absl::Status Of(absl::string_view doing, const rocksdb::Status& status) const {
    const std::string what = absl::StrCat(doing, ": ", status.ToString());
    // A missing file that RocksDB's own records name is as lost as a damaged one.
    if (status.IsCorruption() || status.IsPathNotFound()) return Lost(what);
    if (status.IsInvalidArgument() || status.IsNotSupported()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "metadata store ", directory_, ": ", what,
          "; it was not written by this release: run the one that wrote it, or choose another "
          "directory"));
    }
    const std::optional<uint64_t> limit = FileBytesMax();
    const std::string more =
        limit.has_value()
            ? absl::StrCat(", and RLIMIT_FSIZE (ulimit -f), which is ", *limit, " bytes")
            : "";
    return Unavailable(absl::StrCat(what, "; check the disk, permissions and space", more));
  }
  // An error of the value codec, with the directory in front.
  absl::Status Of(const absl::Status& status) const {
    if (absl::IsDataLoss(status)) return Lost(status.message());
    return absl::Status(status.code(),
                        absl::StrCat("metadata store ", directory_, ": ", status.message()));
  }

 private:
  const std::string directory_;
};

rocksdb::Options StoreOptions(rocksdb::Env* env) {
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = rocksdb::NewLRUCache(size_t{1} << 20);
  rocksdb::Options options;
  options.env = env;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  options.create_if_missing = true;
  options.file_checksum_gen_factory = rocksdb::GetFileChecksumGenCrc32cFactory();
  options.listeners.push_back(KeepTableSums());
  options.write_buffer_size = size_t{1} << 20;
  // Space allocated past the files' ends would use up the reserve (reserved_store.h) on a full
  // disk.
  options.allow_fallocate = false;
  options.manifest_preallocation_size = 0;
  options.compression = rocksdb::kNoCompression;
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  options.paranoid_checks = true;
  options.paranoid_file_checks = true;
  // After a failed write only reopening shows which bytes are on the disk.
  options.max_bgerror_resume_count = 0;
  options.max_log_file_size = size_t{1} << 20;
  options.keep_log_file_num = 4;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  return options;
}

class RocksDbMetaStore : public MetaStore {
 public:
  RocksDbMetaStore(const RocksDbMetaStoreOptions& options, std::unique_ptr<rocksdb::DB> db,
                   CommittedMark mark, uint64_t revision)
      : errors_(options.directory),
        db_(std::move(db)),
        failed_(options.write_failed),
        mark_(std::move(mark)),
        revision_(revision) {}

  absl::StatusOr<std::optional<MetaEntry>> Get(absl::string_view key) override;
  absl::StatusOr<MetaPage> List(const MetaListRequest& request) override;
  absl::StatusOr<MetaTxnResult> Txn(const MetaTxn& txn) override;

 private:
  absl::StatusOr<std::optional<MetaEntry>> Read(absl::string_view key) const;
  absl::StatusOr<bool> AllHold(const std::vector<MetaCompare>& compares) const;
  // Adds the puts and deletes of `txn` at `revision` to `batch`.
  absl::Status Fill(const MetaTxn& txn, uint64_t revision, rocksdb::WriteBatch* batch) const;
  absl::Status Commit(uint64_t revision, rocksdb::WriteBatch* batch)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Errors errors_;
  const std::unique_ptr<rocksdb::DB> db_;
  const std::function<void(const absl::Status&)> failed_;  // may be null
  // Makes compares and writes of one Txn a single step; held while the disk writes, so it is for
  // threads that may block. Reads do not take it.
  Mutex mu_;
  CommittedMark mark_ ABSL_GUARDED_BY(mu_);
  uint64_t revision_ ABSL_GUARDED_BY(mu_);
  bool write_failed_ ABSL_GUARDED_BY(mu_) = false;
};

absl::StatusOr<std::optional<MetaEntry>> RocksDbMetaStore::Read(absl::string_view key) const {
  rocksdb::PinnableSlice stored;
  const rocksdb::Status status =
      db_->Get(rocksdb::ReadOptions(), db_->DefaultColumnFamily(), ToSlice(key), &stored);
  if (status.IsNotFound()) return std::optional<MetaEntry>();
  if (!status.ok()) return errors_.Of(absl::StrCat("reading key '", key, "'"), status);
  auto entry = DecodeMetaValue(key, ToView(stored));
  if (!entry.ok()) return errors_.Of(entry.status());
  return std::optional<MetaEntry>(*std::move(entry));
}

absl::StatusOr<std::optional<MetaEntry>> RocksDbMetaStore::Get(absl::string_view key) {
  BALLAST_RETURN_IF_ERROR(CheckMetaKey(key));
  return Read(key);
}

absl::StatusOr<MetaPage> RocksDbMetaStore::List(const MetaListRequest& request) {
  BALLAST_RETURN_IF_ERROR(CheckMetaList(request));
  MetaPageBuilder page(request);
  const std::unique_ptr<rocksdb::Iterator> next(db_->NewIterator(rocksdb::ReadOptions()));
  // The lowest byte of a key is '!'; keys before it are the store's own.
  next->Seek(ToSlice(std::max({std::string("!"), request.prefix, request.after})));
  if (next->Valid() && ToView(next->key()) == request.after) next->Next();
  const auto in_list = [&] {
    return next->Valid() && absl::StartsWith(ToView(next->key()), request.prefix);
  };
  for (; in_list() && page.HasRoom(); next->Next()) {
    auto entry = DecodeMetaValue(ToView(next->key()), ToView(next->value()));
    if (!entry.ok()) return errors_.Of(entry.status());
    page.Add(*std::move(entry));
  }
  if (!next->status().ok()) {
    return errors_.Of(absl::StrCat("listing '", request.prefix, "'"), next->status());
  }
  return std::move(page).Finish(in_list());
}

absl::StatusOr<bool> RocksDbMetaStore::AllHold(const std::vector<MetaCompare>& compares) const {
  for (const MetaCompare& compare : compares) {
    BALLAST_ASSIGN_OR_RETURN(const std::optional<MetaEntry> current, Read(compare.key));
    if (!MetaCompareHolds(compare, current.has_value() ? &*current : nullptr)) return false;
  }
  return true;
}

absl::Status RocksDbMetaStore::Fill(const MetaTxn& txn, uint64_t revision,
                                    rocksdb::WriteBatch* batch) const {
  for (const MetaPut& put : txn.puts) {
    BALLAST_ASSIGN_OR_RETURN(const std::optional<MetaEntry> current, Read(put.key));
    const uint64_t created = current.has_value() ? current->create_revision : revision;
    batch->Put(put.key, EncodeMetaValue(MetaEntry{put.key, put.value, created, revision}));
  }
  for (const std::string& key : txn.deletes) {
    BALLAST_ASSIGN_OR_RETURN(const std::optional<MetaEntry> current, Read(key));
    if (current.has_value()) batch->Delete(key);
  }
  return absl::OkStatus();
}

// Adds the record of the newest revision, and writes `batch` to the disk.
rocksdb::Status WriteSynced(rocksdb::DB* db, uint64_t revision, rocksdb::WriteBatch* batch) {
  batch->Put(kMetaRevisionKey, EncodeMetaValue(MetaEntry{kMetaRevisionKey, "", 0, revision}));
  rocksdb::WriteOptions options;
  options.sync = true;
  return db->Write(options, batch);
}

absl::Status RocksDbMetaStore::Commit(uint64_t revision, rocksdb::WriteBatch* batch) {
  const rocksdb::Status written = WriteSynced(db_.get(), revision, batch);
  if (!written.ok()) {
    write_failed_ = true;
    const absl::Status failed = errors_.Unavailable(
        absl::StrCat("writing revision ", revision, " failed, and whether it survives is unknown: ",
                     written.ToString(), "; check the disk and its space, then start again"));
    if (failed_) failed_(failed);
    return failed;
  }
  revision_ = revision;
  mark_.Advance(revision);
  return absl::OkStatus();
}

absl::StatusOr<MetaTxnResult> RocksDbMetaStore::Txn(const MetaTxn& txn) {
  BALLAST_RETURN_IF_ERROR(CheckMetaTxn(txn));
  MutexLock lock(&mu_);
  if (write_failed_) {
    return errors_.Unavailable(
        absl::StrCat("an earlier write after revision ", revision_,
                     " failed, so nothing more is written; check the disk, then start again"));
  }
  BALLAST_ASSIGN_OR_RETURN(const bool holds, AllHold(txn.compares));
  if (!holds) return MetaTxnResult{false, revision_};
  rocksdb::WriteBatch batch;
  BALLAST_RETURN_IF_ERROR(Fill(txn, revision_ + 1, &batch));
  if (batch.Count() == 0) return MetaTxnResult{true, revision_};
  BALLAST_RETURN_IF_ERROR(Commit(revision_ + 1, &batch));
  return MetaTxnResult{true, revision_};
}

// Opening, step by step. Until Create or the last step, nothing of a store is changed.
class Opener {
 public:
  explicit Opener(const RocksDbMetaStoreOptions& options)
      : options_(options),
        directory_(options.directory),
        env_(options.env == nullptr ? rocksdb::Env::Default() : options.env),
        errors_(options.directory) {}

  absl::StatusOr<std::unique_ptr<MetaStore>> Open();

 private:
  std::string PathOf(absl::string_view name) const { return absl::StrCat(directory_, "/", name); }
  // Makes `path` and its parents; their entries survive power loss.
  absl::Status MakeDirectory(const std::filesystem::path& path);
  absl::Status LockError(const rocksdb::Status& status) const;
  // Checks the files while no other store can have them open.
  absl::Status CheckLocked();
  absl::Status CheckRemains();
  absl::Status CheckExisting();
  absl::Status CheckTables();
  absl::StatusOr<std::optional<uint64_t>> ReadRevision(rocksdb::DB* db) const;

  const RocksDbMetaStoreOptions& options_;
  const std::string directory_;
  rocksdb::Env* const env_;
  const Errors errors_;
};

absl::Status Opener::MakeDirectory(const std::filesystem::path& path) {
  if (path.empty() || env_->FileExists(path.string()).ok()) return absl::OkStatus();
  const std::filesystem::path parent = path.parent_path();
  BALLAST_RETURN_IF_ERROR(MakeDirectory(parent));
  rocksdb::Status status = env_->CreateDirIfMissing(path.string());
  std::unique_ptr<rocksdb::Directory> entries;
  if (status.ok()) status = env_->NewDirectory(parent.empty() ? "." : parent.string(), &entries);
  if (status.ok()) status = entries->Fsync();
  if (status.ok()) return absl::OkStatus();
  return errors_.Unavailable(absl::StrCat("cannot create directory ", path.string(), ": ",
                                          status.ToString(), "; check the path and permissions"));
}

absl::Status Opener::LockError(const rocksdb::Status& status) const {
  const std::string text = status.ToString();
  if (absl::StrContains(text, "While open a file for lock")) {
    return errors_.Unavailable(
        absl::StrCat("cannot open its lock file: ", text, "; check the path and permissions"));
  }
  return errors_.Unavailable(absl::StrCat(
      "it is locked, because another process (or another store of this one) has it open: ", text,
      "; stop the other one, or give each server its own directory"));
}

absl::Status Opener::CheckRemains() {
  std::vector<std::string> names;
  if (const rocksdb::Status status = env_->GetChildren(directory_, &names); !status.ok()) {
    return errors_.Of("reading the directory", status);
  }
  for (const std::string& name : names) {
    // Commits are in .log and .sst files only; without such files there has been none.
    if (absl::EndsWith(name, ".log") || absl::EndsWith(name, ".sst") ||
        name == kCommittedMarkName) {
      return errors_.Lost(absl::StrCat("it holds ", name, ", but its file CURRENT is gone"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<uint64_t>> Opener::ReadRevision(rocksdb::DB* db) const {
  std::string stored;
  const rocksdb::Status status = db->Get(rocksdb::ReadOptions(), kMetaRevisionKey, &stored);
  if (status.ok()) {
    const auto entry = DecodeMetaValue(kMetaRevisionKey, stored);
    if (!entry.ok()) return errors_.Of(entry.status());
    return std::optional<uint64_t>(entry->mod_revision);
  }
  if (!status.IsNotFound()) return errors_.Of("reading the revision", status);
  const std::unique_ptr<rocksdb::Iterator> any(db->NewIterator(rocksdb::ReadOptions()));
  any->SeekToFirst();
  if (!any->status().ok()) return errors_.Of("reading the first key", any->status());
  if (any->Valid()) return errors_.Lost("it holds keys, but not the newest revision");
  return std::optional<uint64_t>();
}

absl::Status Opener::CheckTables() {
  std::vector<std::string> names;
  if (const rocksdb::Status status = env_->GetChildren(directory_, &names); !status.ok()) {
    return errors_.Of("reading the directory", status);
  }
  for (const std::string& name : names) {
    if (!absl::EndsWith(name, ".sst")) continue;
    const absl::StatusOr<bool> whole = TableIsWhole(PathOf(name));
    if (!whole.ok()) return errors_.Unavailable(whole.status().message());
    if (!*whole) return errors_.Lost(absl::StrCat("its file ", name, " is damaged"));
  }
  return absl::OkStatus();
}

absl::Status Opener::CheckExisting() {
  if (env_->FileExists(PathOf("CURRENT")).IsNotFound()) return CheckRemains();
  BALLAST_RETURN_IF_ERROR(CheckTables());
  rocksdb::DB* opened = nullptr;
  const rocksdb::Status status =
      rocksdb::DB::OpenForReadOnly(StoreOptions(env_), directory_, &opened);
  if (!status.ok()) return errors_.Of("opening it", status);
  const std::unique_ptr<rocksdb::DB> db(opened);
  BALLAST_ASSIGN_OR_RETURN(const std::optional<uint64_t> revision, ReadRevision(db.get()));
  const std::optional<uint64_t> promised = CommittedMark::Read(PathOf(kCommittedMarkName));
  if (promised.value_or(0) <= revision.value_or(0)) return absl::OkStatus();
  return errors_.Lost(absl::StrCat(
      "its newest revision is ", revision.value_or(0), ", but ", *promised,
      " was committed, so its log is damaged; to continue without what is lost, remove its file ",
      kCommittedMarkName));
}

absl::Status Opener::CheckLocked() {
  rocksdb::FileLock* lock = nullptr;
  const rocksdb::Status status = env_->LockFile(PathOf("LOCK"), &lock);
  if (!status.ok()) return LockError(status);
  const absl::Status checked = CheckExisting();
  env_->UnlockFile(lock);
  return checked;
}

absl::StatusOr<std::unique_ptr<MetaStore>> Opener::Open() {
  BALLAST_RETURN_IF_ERROR(MakeDirectory(directory_));
  BALLAST_RETURN_IF_ERROR(CheckLocked());
  rocksdb::DB* opened = nullptr;
  rocksdb::Status status = rocksdb::DB::Open(StoreOptions(env_), directory_, &opened);
  if (!status.ok()) return errors_.Of("opening it", status);
  std::unique_ptr<rocksdb::DB> db(opened);
  BALLAST_ASSIGN_OR_RETURN(std::optional<uint64_t> revision, ReadRevision(db.get()));
  if (!revision.has_value()) {
    rocksdb::WriteBatch batch;
    status = WriteSynced(db.get(), 0, &batch);
    if (!status.ok()) return errors_.Of("writing the first record", status);
    revision = 0;
  }
  BALLAST_ASSIGN_OR_RETURN(CommittedMark mark, CommittedMark::Open(PathOf(kCommittedMarkName)));
  mark.Advance(*revision);
  return std::make_unique<RocksDbMetaStore>(options_, std::move(db), std::move(mark), *revision);
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetaStore>> OpenRocksDbMetaStore(
    const RocksDbMetaStoreOptions& options) {
  if (options.directory.empty()) {
    return absl::InvalidArgumentError(
        "the metadata store needs a directory; set storage.data_dir to a path");
  }
  return Opener(options).Open();
}

}  // namespace ballast::server
