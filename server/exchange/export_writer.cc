#include "server/exchange/export_writer.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/safetensors/writer.h"
#include "server/exchange/run_walk.h"
#include "server/exchange/state_image.h"
#include "server/exchange/universal.h"
#include "server/optim/dispatch.h"

namespace ballast::server {
namespace {

class ShardWriter {
 public:
  ShardWriter(FileSystem* fs, std::string directory, const ExportShard& shard,
              const ExportSource& source)
      : fs_(fs), directory_(std::move(directory)), shard_(shard), source_(source) {}

  absl::Status Write() {
    destinations_.resize(shard_.tensor_count);
    BALLAST_RETURN_IF_ERROR(Begin(shard_.weights));
    if (!shard_.state.name.empty()) BALLAST_RETURN_IF_ERROR(Begin(shard_.state));
    BALLAST_RETURN_IF_ERROR(WriteSteps());
    BALLAST_RETURN_IF_ERROR(WriteExtents());
    for (const auto& writer : writers_) BALLAST_RETURN_IF_ERROR(writer->Finish());
    return absl::OkStatus();
  }

 private:
  // Where a tensor's values go.
  struct Destination {
    SafetensorsWriter* writer = nullptr;
    size_t entry = 0;
    ExportTensor source;
  };

  absl::Status Begin(const ExportFile& file);
  absl::Status WriteSteps();
  absl::Status WriteExtents();
  absl::Status WriteRun(const RunState& state, const Destination& destination);

  FileSystem* const fs_;
  const std::string directory_;
  const ExportShard& shard_;
  const ExportSource& source_;
  std::vector<std::unique_ptr<SafetensorsWriter>> writers_;
  std::vector<std::vector<Destination>> destinations_;  // by tensor, from the shard's first
};

absl::Status ShardWriter::Begin(const ExportFile& file) {
  BALLAST_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsWriter> writer,
                           SafetensorsWriter::Create(fs_, absl::StrCat(directory_, "/", file.name),
                                                     file.entries, file.metadata));
  for (size_t i = 0; i < file.sources.size(); ++i) {
    const ExportTensor& from = file.sources[i];
    destinations_[from.tensor - shard_.first_tensor].push_back({writer.get(), i, from});
  }
  writers_.push_back(std::move(writer));
  return absl::OkStatus();
}

absl::Status ShardWriter::WriteSteps() {
  for (uint32_t i = 0; i < destinations_.size(); ++i) {
    for (const Destination& destination : destinations_[i]) {
      if (destination.source.kind != ExportKind::kStep) continue;
      const auto step = static_cast<int64_t>(source_.tensor_step[shard_.first_tensor + i]);
      BALLAST_RETURN_IF_ERROR(
          destination.writer->WriteAt(destination.entry, 0, {{&step, sizeof(step)}}));
    }
  }
  return absl::OkStatus();
}

absl::Status ShardWriter::WriteExtents() {
  return WalkRuns(shard_, source_, [this](const RunState& state) -> absl::Status {
    for (const Destination& destination : destinations_[state.run.tensor - shard_.first_tensor]) {
      if (destination.source.kind == ExportKind::kStep) continue;
      BALLAST_RETURN_IF_ERROR(WriteRun(state, destination));
    }
    return absl::OkStatus();
  });
}

// The values have the same offset within a page in memory as in the file, so that they can go past
// the page cache.
absl::Status ShardWriter::WriteRun(const RunState& state, const Destination& destination) {
  const Run& run = state.run;
  const SafetensorsHeader& header = destination.writer->header();
  const TensorEntry& entry = header.tensors[destination.entry];
  const size_t width = SafeDTypeBytes(entry.dtype);
  const uint64_t offset = run.tensor_offset * width;
  char* const to = state.first + (header.data_offset + entry.begin + offset) % kPageBytes;
  const ArrayPieces values{*source_.layout, state.extent, source_.arrays, destination.source.array};
  if (entry.dtype == SafeDType::kF32) {
    values.Gather(state.image, run.extent_offset, run.elements, to);
  } else {
    const DType dtype = entry.dtype == SafeDType::kBF16 ? DType::kBF16 : DType::kF16;
    auto* const whole = reinterpret_cast<float*>(state.second);
    values.Gather(state.image, run.extent_offset, run.elements, whole);
    optim::Downcast(optim::Kernels(source_.isa), dtype)(whole, to, run.elements);
  }
  const uint64_t bytes = run.elements * width;
  BALLAST_RETURN_IF_ERROR(destination.writer->WriteAt(destination.entry, offset, {{to, bytes}}));
  if (source_.progress) source_.progress(bytes);
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteExport(FileSystem* fs, const std::string& directory, const ExportShard& shard,
                         const ExportSource& source) {
  if (!shard.universal.empty()) return WriteUniversal(fs, directory, shard, source);
  return ShardWriter(fs, directory, shard, source).Write();
}

}  // namespace ballast::server
