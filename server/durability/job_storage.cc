// JobStorage; see job_storage.h. Its RoundLog: storage_round_log.cc.
#include "server/durability/job_storage.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/bytes/round_up.h"
#include "server/durability/images/borrowed_images.h"
#include "server/durability/storage_meter.h"

namespace ballast::server {
namespace {

// Opening reads the rest of the last segment, so they should be small enough to read quickly,
// unless there would be too many files.
constexpr uint64_t kSegmentBytesMax = uint64_t{256} << 20;
constexpr uint64_t kSegmentsAimedAt = 200;
constexpr char kImagesName[] = "slots";

absl::Status TooLittleRoom(const std::string& directory, uint64_t needed, uint64_t free) {
  return ReasonedError(absl::StatusCode::kResourceExhausted, Reason::kOverBudget,
                       absl::StrCat("the job needs ", needed, " bytes of disk under ", directory,
                                    " for its log and ", "checkpoint; ", free,
                                    " are free. Free some, set storage.data_dir to a larger ",
                                    "disk, use more servers, or lower storage.checkpoint_rounds"));
}

// Turns a full disk while files are made into OVER_BUDGET, as if the job had never begun.
absl::Status NoRoom(const absl::Status& why) {
  if (!absl::IsResourceExhausted(why) || ReasonOf(why) != Reason::kUnspecified) return why;
  return ReasonedError(absl::StatusCode::kResourceExhausted, Reason::kOverBudget,
                       std::string(why.message()));
}

}  // namespace

LogOptions JobStorage::LogGeometry(const StorageOptions& options) {
  // Two records: as many headers and unfilled last pages.
  uint64_t round_bytes =
      std::max(options.segment_bytes_min / 4, options.record_bytes + 4 * kPageBytes);
  uint64_t largest = round_bytes;
  for (const uint64_t bytes : options.gradient_bytes) {
    round_bytes += GradientLog::RecordBytes(bytes);
    largest = std::max(largest, GradientLog::RecordBytes(bytes));
  }
  LogOptions log;
  log.job = options.images.job;
  log.server = options.images.server;
  log.flush = options.images.flush;
  log.direct = options.images.direct;
  log.open_threads = options.images.open_threads;
  log.epoch = options.epoch;
  log.start_round = options.start_round;
  log.secret = options.log_secret;
  const uint64_t rounds = options.checkpoint_rounds + 2;
  const uint64_t most = std::max(kSegmentBytesMax, rounds * round_bytes / kSegmentsAimedAt);
  log.segment_bytes = RoundUp(
      std::max(std::clamp(round_bytes, options.segment_bytes_min, most), 2 * largest) + kPageBytes,
      kPageBytes);
  // A record never crosses a segment, so the end of each may stay unused.
  const uint64_t usable = log.segment_bytes - kPageBytes - largest;
  log.segments = static_cast<uint32_t>((rounds * round_bytes + usable - 1) / usable) + 2;
  return log;
}

uint64_t JobStorage::DiskBytes(const StorageOptions& options) {
  return GradientLog::DiskBytes(LogGeometry(options)) + ImageFile::DiskBytes(options.shapes);
}

JobStorage::JobStorage(std::unique_ptr<GradientLog> log, std::unique_ptr<ImageFile> images,
                       std::vector<ImageShape> shapes, uint64_t start_round)
    : log_(std::move(log)),
      images_(std::move(images)),
      shapes_(std::move(shapes)),
      start_round_(start_round) {}

absl::StatusOr<std::unique_ptr<JobStorage>> JobStorage::Create(FileSystem* fs,
                                                               const std::string& directory,
                                                               const StorageOptions& options) {
  BALLAST_RETURN_IF_ERROR(fs->MakeDirectory(directory));
  BALLAST_ASSIGN_OR_RETURN(const uint64_t free, fs->FreeBytes(directory));
  const uint64_t needed = DiskBytes(options);
  if (free < needed) return TooLittleRoom(directory, needed, free);
  auto log = GradientLog::Create(fs, directory, LogGeometry(options));
  if (!log.ok()) return NoRoom(log.status());
  auto images = ImageFile::Create(fs, absl::StrCat(directory, "/", kImagesName), options.images,
                                  options.shapes);
  if (!images.ok()) return NoRoom(images.status());
  return std::make_unique<JobStorage>(*std::move(log), *std::move(images), options.shapes,
                                      options.start_round);
}

absl::StatusOr<std::unique_ptr<JobStorage>> JobStorage::Open(FileSystem* fs,
                                                             const std::string& directory,
                                                             const StorageOptions& options) {
  BALLAST_ASSIGN_OR_RETURN(auto log, GradientLog::Open(fs, directory, LogGeometry(options)));
  BALLAST_ASSIGN_OR_RETURN(auto own, ImageFile::Open(fs, absl::StrCat(directory, "/", kImagesName),
                                                     options.images, options.shapes));
  BALLAST_ASSIGN_OR_RETURN(
      auto images, OpenBorrowed(fs, directory, options.images, options.shapes, std::move(own)));
  return std::make_unique<JobStorage>(std::move(log), std::move(images), options.shapes,
                                      options.start_round);
}

void JobStorage::Measure(const Clock* clock, ServerMetrics* metrics, const QualifiedName& run,
                         bool flushed) {
  if (metrics == nullptr) return;
  const auto meter = std::make_shared<const StorageMeter>(clock, metrics, run, flushed);
  log_ = MeasuredLog(std::move(log_), meter);
  images_ = MeasuredImages(std::move(images_), shapes_, meter);
}

uint64_t JobStorage::CoveredRound() const {
  uint64_t covered = std::numeric_limits<uint64_t>::max();
  for (const ImageShape& shape : shapes_) {
    covered = std::min(covered, images_->Flushed(shape.extent));
  }
  return covered;
}

}  // namespace ballast::server
