// The two sides of log_bench that write rounds: a GradientLog, and RocksDB in its place.
// Comes from: log_bench. Goes to: server/durability, RocksDB.
// Thread safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/parts/raw_disk.h"
#include "common/io/arena.h"
#include "common/io/engine_files.h"
#include "rocksdb/db.h"
#include "server/durability/log/gradient_log.h"

namespace ballast::bench {

// Random gradients in huge pages.
class Payloads {
 public:
  static constexpr size_t kCount = 16;  // of kBlockBytes
  absl::Status Fill();
  // kBlockBytes, the same for equal arguments.
  const char* Of(uint64_t round, uint64_t extent) const {
    return memory_.data() + (round + extent) % kCount * kBlockBytes;
  }

 private:
  Arena memory_;
};

// A GradientLog and the number of its next round.
class LogWriter {
 public:
  // In a new directory; the log takes `bytes` of disk.
  static absl::StatusOr<std::unique_ptr<LogWriter>> Create(const std::string& directory,
                                                           uint64_t bytes,
                                                           const Payloads* payloads);

  // Of the next round; `bytes` up to kBlockBytes.
  absl::Status AppendExtent(uint32_t extent, size_t bytes);
  // The vote, which counts extents 0 to `extents` - 1.
  absl::Status Prepare(size_t extents);
  // Sync, and forgets rounds that a server's checkpoints would have covered.
  absl::Status EndRound();

  // Bytes per second of rounds of `extents` extents of `bytes` bytes with one Sync each.
  absl::StatusOr<double> WriteRounds(size_t extents, size_t bytes, double seconds);

  // Opens the log again and counts extents of the kept rounds that differ from the written ones.
  absl::StatusOr<uint64_t> Verify(size_t extents, size_t bytes);

 private:
  LogWriter(std::string directory, const server::LogOptions& options, const Payloads* payloads)
      : directory_(std::move(directory)), options_(options), payloads_(payloads) {}

  const std::string directory_;
  const server::LogOptions options_;
  const Payloads* const payloads_;
  // As a server's: the log writes through an engine.
  const std::unique_ptr<FileSystem> files_ = EngineFileSystem(PosixFileSystem(), IoOptions{});
  std::unique_ptr<server::GradientLog> log_;
  uint64_t round_ = 1;
};

// RocksDB as one would use it for this: no compression of random bytes, large write buffers, reused
// logs.
class RocksWriter {
 public:
  static absl::StatusOr<std::unique_ptr<RocksWriter>> Create(const std::string& directory,
                                                             const Payloads* payloads);
  ~RocksWriter();

  // Bytes per second of synced writes of `values` values of `bytes` bytes each. Flushes and
  // compactions run during the call only.
  absl::StatusOr<double> WriteBatches(size_t values, size_t bytes, double seconds);
  // Counts the newest values that differ from the written ones.
  absl::StatusOr<uint64_t> Verify();

 private:
  explicit RocksWriter(const Payloads* payloads) : payloads_(payloads) {}
  rocksdb::Slice Value(uint64_t number, size_t bytes) const {
    return {payloads_->Of(number, 0) + number % (kBlockBytes / bytes) * bytes, bytes};
  }

  const Payloads* const payloads_;
  std::unique_ptr<rocksdb::DB> db_;
  uint64_t next_ = 0;
  size_t newest_bytes_ = 0;
  uint64_t newest_first_ = 0;  // key of the newest call of WriteBatches
};

}  // namespace ballast::bench
