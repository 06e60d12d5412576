#include "server/exchange/export_writer.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/io/arena.h"
#include "common/safetensors/writer.h"
#include "server/durability/image_file.h"
#include "server/durability/read_lanes.h"
#include "server/exchange/state_image.h"
#include "server/optim/dispatch.h"

namespace ballast::server {
namespace {

// Extents under way at a time: enough for reads and writes to overlap.
constexpr int kLanes = 4;

class ShardWriter {
 public:
  ShardWriter(FileSystem* fs, std::string directory, const ExportShard& shard,
              const ExportSource& source)
      : fs_(fs), directory_(std::move(directory)), shard_(shard), source_(source) {}

  absl::Status Write() {
    places_.resize(shard_.tensor_count);
    BALLAST_RETURN_IF_ERROR(Begin(shard_.weights));
    if (!shard_.state.name.empty()) BALLAST_RETURN_IF_ERROR(Begin(shard_.state));
    BALLAST_RETURN_IF_ERROR(WriteSteps());
    BALLAST_RETURN_IF_ERROR(WriteExtents());
    for (const auto& writer : writers_) BALLAST_RETURN_IF_ERROR(writer->Finish());
    return absl::OkStatus();
  }

 private:
  // Where a tensor's values go.
  struct Place {
    SafetensorsWriter* writer = nullptr;
    size_t entry = 0;
    ExportTensor source;
  };

  absl::Status Begin(const ExportFile& file);
  absl::Status WriteSteps();
  absl::Status WriteExtents();
  absl::Status WriteExtent(uint32_t extent, const Arena& scratch);
  absl::Status WriteRun(uint32_t extent, const Run& run, const Place& place, const float* image,
                        char* staging);
  bool Mine(const Run& run) const {
    return run.tensor >= shard_.first_tensor &&
           run.tensor - shard_.first_tensor < shard_.tensor_count;
  }

  FileSystem* const fs_;
  const std::string directory_;
  const ExportShard& shard_;
  const ExportSource& source_;
  std::vector<std::unique_ptr<SafetensorsWriter>> writers_;
  std::vector<std::vector<Place>> places_;  // by tensor, from the shard's first
};

absl::Status ShardWriter::Begin(const ExportFile& file) {
  BALLAST_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsWriter> writer,
                           SafetensorsWriter::Create(fs_, absl::StrCat(directory_, "/", file.name),
                                                     file.entries, file.metadata));
  for (size_t i = 0; i < file.sources.size(); ++i) {
    const ExportTensor& from = file.sources[i];
    places_[from.tensor - shard_.first_tensor].push_back({writer.get(), i, from});
  }
  writers_.push_back(std::move(writer));
  return absl::OkStatus();
}

absl::Status ShardWriter::WriteSteps() {
  for (uint32_t i = 0; i < places_.size(); ++i) {
    for (const Place& place : places_[i]) {
      if (place.source.kind != ExportKind::kStep) continue;
      const auto step = static_cast<int64_t>(source_.tensor_step[shard_.first_tensor + i]);
      BALLAST_RETURN_IF_ERROR(place.writer->WriteAt(place.entry, 0, {{&step, sizeof(step)}}));
    }
  }
  return absl::OkStatus();
}

absl::Status ShardWriter::WriteExtents() {
  const Layout& layout = *source_.layout;
  std::vector<uint32_t> extents;
  for (uint32_t extent = 0; extent < layout.extents().size(); ++extent) {
    const auto first = layout.runs().begin() + layout.extents()[extent].first_run;
    const auto end = first + layout.extents()[extent].run_count;
    if (std::any_of(first, end, [&](const Run& run) { return Mine(run); })) {
      extents.push_back(extent);
    }
  }
  const ImageShape largest{0, layout.extent_elements(), source_.arrays};
  // The image, and one array of a run: as fp32, and in the weights' dtype at any place of a page.
  const size_t run_bytes = size_t{layout.extent_elements()} * sizeof(float) + 2 * kPageBytes;
  BALLAST_ASSIGN_OR_RETURN(
      ReadLanes lanes, ReadLanes::Create(kLanes, ImageFile::BufferBytes(largest) + 2 * run_bytes));
  return lanes.ForEach(extents.size(), [&](size_t i, const Arena& scratch) {
    return WriteExtent(extents[i], scratch);
  });
}

absl::Status ShardWriter::WriteExtent(uint32_t extent_id, const Arena& scratch) {
  const Layout& layout = *source_.layout;
  const Extent& extent = layout.extents()[extent_id];
  if (source_.go_on) BALLAST_RETURN_IF_ERROR(source_.go_on());
  BALLAST_RETURN_IF_ERROR(source_.read(extent_id, scratch.data()));
  const auto* const image = reinterpret_cast<const float*>(scratch.data());
  const ImageShape largest{0, layout.extent_elements(), source_.arrays};
  char* const staging = scratch.data() + ImageFile::BufferBytes(largest);
  for (uint32_t i = 0; i < extent.run_count; ++i) {
    const Run& run = layout.runs()[extent.first_run + i];
    if (!Mine(run)) continue;
    for (const Place& place : places_[run.tensor - shard_.first_tensor]) {
      if (place.source.kind == ExportKind::kStep) continue;
      BALLAST_RETURN_IF_ERROR(WriteRun(extent_id, run, place, image, staging));
    }
  }
  return absl::OkStatus();
}

// The values stand where in a page they stand in the file, so that they can go past its cache.
absl::Status ShardWriter::WriteRun(uint32_t extent, const Run& run, const Place& place,
                                   const float* image, char* staging) {
  const SafetensorsHeader& header = place.writer->header();
  const TensorEntry& entry = header.tensors[place.entry];
  const size_t width = SafeDTypeBytes(entry.dtype);
  const uint64_t offset = run.tensor_offset * width;
  char* const to = staging + (header.data_offset + entry.begin + offset) % kPageBytes;
  const ArrayPieces values{*source_.layout, extent, source_.arrays, place.source.array};
  if (entry.dtype == SafeDType::kF32) {
    values.Gather(image, run.extent_offset, run.elements, to);
  } else {
    const DType dtype = entry.dtype == SafeDType::kBF16 ? DType::kBF16 : DType::kF16;
    auto* const whole = reinterpret_cast<float*>(
        staging + size_t{source_.layout->extent_elements()} * sizeof(float) + 2 * kPageBytes);
    values.Gather(image, run.extent_offset, run.elements, whole);
    optim::Downcast(optim::Kernels(source_.isa), dtype)(whole, to, run.elements);
  }
  const uint64_t bytes = run.elements * width;
  BALLAST_RETURN_IF_ERROR(place.writer->WriteAt(place.entry, offset, {{to, bytes}}));
  if (source_.progress) source_.progress(bytes);
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteExport(FileSystem* fs, const std::string& directory, const ExportShard& shard,
                         const ExportSource& source) {
  return ShardWriter(fs, directory, shard, source).Write();
}

}  // namespace ballast::server
