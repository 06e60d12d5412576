// JobStorage: one job's directory on one server (gradient log and images), and the RoundLog that
// writes to it on executors of its own, so that the job's strand never waits for a disk.
//
//   <directory>/log-NNN    gradient log (docs/formats/log.md)
//   <directory>/slots       rolling checkpoint (docs/formats/images.md)
//   <directory>/base...    borrowed images of a forked job (borrowed_images.h)
//
// Comes from: server/jobs (creation, restart), server/engine. Goes to: common/io files.
// Thread safety: JobStorage is thread-compatible until MakeRoundLog; the RoundLog as its header
// says.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/io/file.h"
#include "common/metrics/metrics.h"
#include "common/threads/executor_source.h"
#include "server/durability/images/image_file.h"
#include "server/durability/log/gradient_log.h"
#include "server/durability/round_log.h"

namespace ballast::server {

struct StorageOptions {
  ImageOptions images;
  std::vector<ImageShape> shapes;  // of the owned extents, ascending extent
  // Largest reduced gradient of each of `shapes`, bytes.
  std::vector<uint64_t> gradient_bytes;
  // Largest PREPARE and decision of one round, bytes together.
  uint64_t record_bytes = 0;
  // Every extent is checkpointed once in this many rounds; the log holds that many and two more.
  uint32_t checkpoint_rounds = 4;
  // The job's epoch, and the round it started with.
  uint32_t epoch = 0;
  uint64_t start_round = 0;
  uint64_t log_secret = 0;  // LogOptions::secret
  // Least size of a segment of the log; a quarter of it is the least room for the records of a
  // round.
  uint64_t segment_bytes_min = uint64_t{1} << 20;
};

class JobStorage {
 public:
  // The log's geometry for `options`.
  static LogOptions LogGeometry(const StorageOptions& options);
  // Bytes of disk Create will take.
  static uint64_t DiskBytes(const StorageOptions& options);

  // Makes the files. RESOURCE_EXHAUSTED OVER_BUDGET with the bytes needed and free, before anything
  // is written; after other errors the caller removes the directory.
  static absl::StatusOr<std::unique_ptr<JobStorage>> Create(FileSystem* fs,
                                                            const std::string& directory,
                                                            const StorageOptions& options);
  // Opens them after a restart. Errors as GradientLog::Open, ImageFile::Open and
  // OpenBorrowed.
  static absl::StatusOr<std::unique_ptr<JobStorage>> Open(FileSystem* fs,
                                                          const std::string& directory,
                                                          const StorageOptions& options);

  GradientLog* log() { return log_.get(); }
  ImageFile* images() { return images_.get(); }

  // From now on the job's metrics count reads, writes, flushes and damage of the files. Called
  // once, before MakeRoundLog; `clock` and `metrics` outlive the files. No effect where `metrics`
  // is null.
  void Measure(const Clock* clock, ServerMetrics* metrics, const QualifiedName& run, bool flushed);

  // Hands everything to executors of its own, which `executors` makes. `durable_round` is the
  // newest round known to survive. `tier_threads` is how many images are read, and how many
  // written, at a time for a tier that lives in them; 0 for no tier and no image_io().
  static std::unique_ptr<RoundLog> MakeRoundLog(std::unique_ptr<JobStorage> storage,
                                                uint64_t durable_round, ExecutorSource* executors,
                                                int tier_threads = 0);

  JobStorage(std::unique_ptr<GradientLog> log, std::unique_ptr<ImageFile> images,
             std::vector<ImageShape> shapes, uint64_t start_round);

 private:
  friend class StorageRoundLog;
  // Rounds below this are in the images of every extent.
  uint64_t CoveredRound() const;

  std::unique_ptr<GradientLog> log_;
  std::unique_ptr<ImageFile> images_;
  std::vector<ImageShape> shapes_;
  const uint64_t start_round_;
};

}  // namespace ballast::server
