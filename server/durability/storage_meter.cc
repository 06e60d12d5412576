#include "server/durability/storage_meter.h"

#include <map>
#include <utility>

namespace ballast::server {

StorageMeter::StorageMeter(const Clock* clock, ServerMetrics* metrics, const QualifiedName& run,
                           bool flushed)
    : clock_(clock), metrics_(metrics), job_(metrics->Job(run)), flushed_(flushed) {}

absl::Status StorageMeter::Appended(std::chrono::nanoseconds began, uint64_t payload_bytes,
                                    const absl::Status& status) const {
  job_->log_short_of_room.Set(absl::IsResourceExhausted(status) ? 1 : 0);
  if (!status.ok()) return status;
  const uint64_t bytes = GradientLog::RecordBytes(payload_bytes);
  Observe(metrics_->log_append(), began);
  job_->log_bytes.Add(bytes);
  job_->log_unflushed_bytes.Add(static_cast<double>(bytes));
  return status;
}

absl::Status StorageMeter::Flushed(std::chrono::nanoseconds began,
                                   const absl::Status& status) const {
  if (!status.ok()) return status;
  if (flushed_) Observe(metrics_->log_flush(), began);
  job_->log_unflushed_bytes.Set(0);
  return status;
}

void StorageMeter::Room(uint64_t free_bytes) const {
  job_->log_free_bytes.Set(static_cast<double>(free_bytes));
}

absl::Status StorageMeter::ImageWritten(std::chrono::nanoseconds began, uint64_t bytes,
                                        const absl::Status& status) const {
  if (!status.ok()) return status;
  Observe(metrics_->image_io(ImageOp::kWrite), began);
  job_->image_writes.Add();
  job_->image_write_bytes.Add(bytes);
  return status;
}

absl::Status StorageMeter::ImageRead(std::chrono::nanoseconds began,
                                     const absl::Status& status) const {
  if (status.ok()) Observe(metrics_->image_io(ImageOp::kRead), began);
  if (absl::IsDataLoss(status)) metrics_->checksum_errors("image")->Add();
  return status;
}

absl::Status StorageMeter::LogRead(const absl::Status& status) const {
  if (absl::IsDataLoss(status)) metrics_->checksum_errors("log")->Add();
  return status;
}

namespace {

class LogInFront final : public GradientLog {
 public:
  LogInFront(std::unique_ptr<GradientLog> log, std::shared_ptr<const StorageMeter> meter)
      : log_(std::move(log)), meter_(std::move(meter)) {}

  const std::map<uint64_t, LoggedRound>& rounds() const override { return log_->rounds(); }
  absl::Status ReadExtent(const LoggedExtent& extent, void* to) override {
    return meter_->LogRead(log_->ReadExtent(extent, to));
  }
  absl::Status ReadFlushed(const LoggedExtent& extent, void* to) const override {
    return meter_->LogRead(log_->ReadFlushed(extent, to));
  }
  absl::Status AppendExtent(const ReducedExtent& extent) override {
    return Append(extent.at.bytes, [&] { return log_->AppendExtent(extent); });
  }
  // Their payload, mostly less than a page, is not known here.
  absl::Status AppendPrepared(const PreparedRecord& record) override {
    return Append(0, [&] { return log_->AppendPrepared(record); });
  }
  absl::Status AppendDecision(const DecisionRecord& record) override {
    return Append(0, [&] { return log_->AppendDecision(record); });
  }
  absl::Status AppendRatios(const RatiosRecord& record) override {
    return Append(0, [&] { return log_->AppendRatios(record); });
  }
  absl::Status Sync() override {
    const auto began = meter_->Now();
    return meter_->Flushed(began, log_->Sync());
  }
  void TrimTo(uint64_t round) override {
    log_->TrimTo(round);
    meter_->Room(log_->FreeBytes());
  }
  absl::Status Repeat(uint64_t round) override { return log_->Repeat(round); }
  void BeginEpoch(uint32_t epoch, uint64_t start_round) override {
    log_->BeginEpoch(epoch, start_round);
  }
  absl::Status Seed(const PreparedRecord& prepared, const DecisionRecord& decision) override {
    return log_->Seed(prepared, decision);
  }
  uint64_t FreeBytes() const override { return log_->FreeBytes(); }

 private:
  template <typename Body>
  absl::Status Append(uint64_t bytes, Body body) {
    const auto began = meter_->Now();
    return meter_->Appended(began, bytes, body());
  }

  const std::unique_ptr<GradientLog> log_;
  const std::shared_ptr<const StorageMeter> meter_;
};

class ImagesInFront final : public ImageFile {
 public:
  ImagesInFront(std::unique_ptr<ImageFile> images, const std::vector<ImageShape>& shapes,
                std::shared_ptr<const StorageMeter> meter)
      : images_(std::move(images)), meter_(std::move(meter)) {
    for (const ImageShape& shape : shapes) bytes_[shape.extent] = BufferBytes(shape);
  }

  std::vector<uint64_t> Versions(uint32_t extent) const override {
    return images_->Versions(extent);
  }
  void Forget(uint32_t extent) override { images_->Forget(extent); }
  uint64_t Flushed(uint32_t extent) const override { return images_->Flushed(extent); }
  bool NeedsSync(uint32_t extent) const override { return images_->NeedsSync(extent); }
  absl::StatusOr<uint64_t> Hold(uint32_t extent) override { return images_->Hold(extent); }
  void LetGo(uint32_t extent) override { images_->LetGo(extent); }
  std::optional<uint64_t> Held(uint32_t extent) const override { return images_->Held(extent); }
  absl::Status Write(uint32_t extent, uint64_t version, const void* data,
                     absl::Span<const uint32_t> chunk_crcs) override {
    const auto began = meter_->Now();
    const auto bytes = bytes_.find(extent);
    return meter_->ImageWritten(began, bytes == bytes_.end() ? 0 : bytes->second,
                                images_->Write(extent, version, data, chunk_crcs));
  }
  absl::Status Sync() override { return images_->Sync(); }
  absl::Status Read(uint32_t extent, uint64_t version, void* to) override {
    const auto began = meter_->Now();
    return meter_->ImageRead(began, images_->Read(extent, version, to));
  }

 private:
  const std::unique_ptr<ImageFile> images_;
  const std::shared_ptr<const StorageMeter> meter_;
  std::map<uint32_t, uint64_t> bytes_;  // of an image, by extent; constant
};

}  // namespace

std::unique_ptr<GradientLog> MeasuredLog(std::unique_ptr<GradientLog> log,
                                         std::shared_ptr<const StorageMeter> meter) {
  meter->Room(log->FreeBytes());
  return std::make_unique<LogInFront>(std::move(log), std::move(meter));
}

std::unique_ptr<ImageFile> MeasuredImages(std::unique_ptr<ImageFile> images,
                                          const std::vector<ImageShape>& shapes,
                                          std::shared_ptr<const StorageMeter> meter) {
  return std::make_unique<ImagesInFront>(std::move(images), shapes, std::move(meter));
}

}  // namespace ballast::server
