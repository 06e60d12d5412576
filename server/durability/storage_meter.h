// StorageMeter: the metrics of a job's files: how long appends and flushes of the log take,
// unflushed bytes, room left, images written and read, damaged bytes. MeasuredLog and
// MeasuredImages wrap a job's log and images and behave like them. Comes from: JobStorage::Measure.
// Goes to: ServerMetrics, JobMetrics. Thread safety: StorageMeter is thread-safe, an observation is
// a few atomic additions; the others as the objects they wrap.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/metrics/metrics.h"
#include "server/durability/images/image_file.h"
#include "server/durability/log/gradient_log.h"

namespace ballast::server {

class StorageMeter {
 public:
  // Of job `run`. Flushes of a log not `flushed` to the disk take no time, and are not observed: a
  // server's histogram is of those that rounds wait for. `clock` and `metrics` outlive this.
  StorageMeter(const Clock* clock, ServerMetrics* metrics, const QualifiedName& run, bool flushed);

  std::chrono::nanoseconds Now() const { return clock_->Now(); }
  // A record with `payload_bytes` was appended, or refused with `status`; it began at `began`.
  absl::Status Appended(std::chrono::nanoseconds began, uint64_t payload_bytes,
                        const absl::Status& status) const;
  absl::Status Flushed(std::chrono::nanoseconds began, const absl::Status& status) const;
  void Room(uint64_t free_bytes) const;
  absl::Status ImageWritten(std::chrono::nanoseconds began, uint64_t bytes,
                            const absl::Status& status) const;
  absl::Status ImageRead(std::chrono::nanoseconds began, const absl::Status& status) const;
  absl::Status LogRead(const absl::Status& status) const;

 private:
  void Observe(Histogram* histogram, std::chrono::nanoseconds began) const {
    histogram->Observe(std::chrono::duration<double>(clock_->Now() - began).count());
  }

  const Clock* const clock_;
  ServerMetrics* const metrics_;
  const std::shared_ptr<JobMetrics> job_;
  const bool flushed_;
};

// `log` and `images`, measured by `meter`. `shapes`: of all extents.
std::unique_ptr<GradientLog> MeasuredLog(std::unique_ptr<GradientLog> log,
                                         std::shared_ptr<const StorageMeter> meter);
std::unique_ptr<ImageFile> MeasuredImages(std::unique_ptr<ImageFile> images,
                                          const std::vector<ImageShape>& shapes,
                                          std::shared_ptr<const StorageMeter> meter);

}  // namespace ballast::server
