#include "bench/storage/log_writers.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "bench/parts/harness.h"
#include "common/base/status_macros.h"
#include "common/io/file.h"
#include "rocksdb/options.h"
#include "rocksdb/write_batch.h"

namespace ballast::bench {
namespace {

constexpr uint32_t kSegments = 4;
constexpr uint64_t kRoundsKept = 6;  // as a server has that checkpoints every fourth round
constexpr uint64_t kKeys = 512;      // of RocksDB, written over and over
constexpr uint64_t kVerified = 16;

absl::Status Converted(const rocksdb::Status& status) {
  return status.ok() ? absl::OkStatus() : absl::InternalError("RocksDB: " + status.ToString());
}

std::string Key(uint64_t number, size_t bytes) {
  return absl::StrFormat("%d/%016d", bytes, number % kKeys);
}

}  // namespace

absl::Status Payloads::Fill() {
  BALLAST_ASSIGN_OR_RETURN(memory_, Arena::Create(kCount * kBlockBytes));
  FillRandomBytes(memory_.data(), memory_.bytes(), 7);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<LogWriter>> LogWriter::Create(const std::string& directory,
                                                             uint64_t bytes,
                                                             const Payloads* payloads) {
  const server::LogOptions options{
      .job = 1, .segment_bytes = bytes / kSegments, .segments = kSegments, .secret = 1};
  std::unique_ptr<LogWriter> out(new LogWriter(directory, options, payloads));
  BALLAST_RETURN_IF_ERROR(out->files_->MakeDirectory(directory));
  BALLAST_ASSIGN_OR_RETURN(out->log_,
                           server::GradientLog::Create(out->files_.get(), directory, options));
  return out;
}

absl::Status LogWriter::AppendExtent(uint32_t extent, size_t bytes) {
  return log_->AppendExtent({.at = {.epoch = 1,
                                    .round = round_,
                                    .extent = extent,
                                    .dtype = DType::kF32,
                                    .sumsq = 1,
                                    .bytes = bytes},
                             .data = payloads_->Of(round_, extent)});
}

absl::Status LogWriter::Prepare(size_t extents) {
  server::PreparedRecord record{.epoch = 1, .round = round_};
  for (uint32_t extent = 0; extent < extents; ++extent) record.vote.norms.push_back({extent, 1});
  return log_->AppendPrepared(record);
}

absl::Status LogWriter::EndRound() {
  BALLAST_RETURN_IF_ERROR(log_->Sync());
  ++round_;
  if (round_ > kRoundsKept) log_->TrimTo(round_ - kRoundsKept);
  return absl::OkStatus();
}

absl::StatusOr<double> LogWriter::WriteRounds(size_t extents, size_t bytes, double seconds) {
  const double start = Now();
  uint64_t written = 0;
  while (Now() - start < seconds) {
    for (uint32_t extent = 0; extent < extents; ++extent) {
      BALLAST_RETURN_IF_ERROR(AppendExtent(extent, bytes));
    }
    BALLAST_RETURN_IF_ERROR(EndRound());
    written += extents * bytes;
  }
  return static_cast<double>(written) / (Now() - start);
}

absl::StatusOr<uint64_t> LogWriter::Verify(size_t extents, size_t bytes) {
  log_.reset();
  BALLAST_ASSIGN_OR_RETURN(log_, server::GradientLog::Open(files_.get(), directory_, options_));
  BALLAST_ASSIGN_OR_RETURN(const Arena buffer, Arena::Create(bytes));
  uint64_t differing = 0;
  const uint64_t first = round_ > kRoundsKept ? round_ - kRoundsKept : 1;
  for (uint64_t round = first; round < round_; ++round) {
    const auto found = log_->rounds().find(round);
    if (found == log_->rounds().end() || found->second.extents.size() != extents) {
      ++differing;
      continue;
    }
    for (const auto& [extent, logged] : found->second.extents) {
      BALLAST_RETURN_IF_ERROR(log_->ReadExtent(logged, buffer.data()));
      differing += std::memcmp(buffer.data(), payloads_->Of(round, extent), bytes) != 0 ? 1 : 0;
    }
  }
  return differing;
}

absl::StatusOr<std::unique_ptr<RocksWriter>> RocksWriter::Create(const std::string& directory,
                                                                 const Payloads* payloads) {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.compression = rocksdb::kNoCompression;
  options.write_buffer_size = size_t{256} << 20;
  options.recycle_log_file_num = 4;
  options.max_background_jobs = 4;
  rocksdb::DB* db = nullptr;
  BALLAST_RETURN_IF_ERROR(Converted(rocksdb::DB::Open(options, directory, &db)));
  std::unique_ptr<RocksWriter> out(new RocksWriter(payloads));
  out->db_.reset(db);
  BALLAST_RETURN_IF_ERROR(Converted(db->PauseBackgroundWork()));
  return out;
}

RocksWriter::~RocksWriter() {
  // Closing waits for background work.
  if (db_ != nullptr) db_->ContinueBackgroundWork().PermitUncheckedError();
}

absl::StatusOr<double> RocksWriter::WriteBatches(size_t values, size_t bytes, double seconds) {
  BALLAST_RETURN_IF_ERROR(Converted(db_->ContinueBackgroundWork()));
  rocksdb::WriteOptions synced;
  synced.sync = true;
  const double start = Now();
  newest_first_ = next_;
  uint64_t written = 0;
  while (Now() - start < seconds) {
    rocksdb::WriteBatch batch;
    for (size_t i = 0; i < values; ++i, ++next_) {
      BALLAST_RETURN_IF_ERROR(Converted(batch.Put(Key(next_, bytes), Value(next_, bytes))));
    }
    BALLAST_RETURN_IF_ERROR(Converted(db_->Write(synced, &batch)));
    written += values * bytes;
  }
  const double took = Now() - start;
  newest_bytes_ = bytes;
  BALLAST_RETURN_IF_ERROR(Converted(db_->PauseBackgroundWork()));
  return static_cast<double>(written) / took;
}

absl::StatusOr<uint64_t> RocksWriter::Verify() {
  uint64_t differing = 0;
  // Keys hold the size of their values, so only those of the newest call are known by it.
  const uint64_t first = std::max(newest_first_, next_ - std::min(next_, kVerified));
  for (uint64_t i = first; i < next_; ++i) {
    std::string value;
    BALLAST_RETURN_IF_ERROR(
        Converted(db_->Get(rocksdb::ReadOptions(), Key(i, newest_bytes_), &value)));
    differing += rocksdb::Slice(value) == Value(i, newest_bytes_) ? 0 : 1;
  }
  return differing;
}

}  // namespace ballast::bench
