#include "server/exchange/import_source.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/job/upload_plane.h"
#include "common/text/names.h"
#include "server/exchange/export_plan.h"
#include "server/exchange/exports.h"
#include "server/exchange/state_image.h"
#include "server/optim/dispatch.h"

namespace ballast::server {
namespace {

constexpr absl::string_view kSuffix = ".safetensors";

absl::Status Bad(absl::string_view what) {
  return ReasonedError(absl::StatusCode::kInvalidArgument, Reason::kBadArgument, std::string(what));
}

absl::StatusOr<DType> FromSafeDType(SafeDType dtype) {
  if (dtype == SafeDType::kF32) return DType::kF32;
  if (dtype == SafeDType::kBF16) return DType::kBF16;
  if (dtype == SafeDType::kF16) return DType::kF16;
  return absl::InvalidArgumentError("");
}

// The error for a directory entry that cannot be opened.
absl::Status LinkToNothing(const std::string& path) {
  return Bad(absl::StrCat(path,
                          " is there, but what it links to is not; put the file itself "
                          "there, or mend the link"));
}

std::string ShapeText(const std::vector<uint64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

}  // namespace

absl::StatusOr<SnapshotManifest> ReadJobFile(FileSystem* fs, const std::string& directory) {
  const auto names = fs->List(directory);
  if (!names.ok() && !absl::IsNotFound(names.status())) return names.status();
  if (!names.ok()) {
    return ReasonedError(absl::StatusCode::kNotFound, Reason::kUnknownJob,
                         absl::StrCat("there is no export ", directory,
                                      "; give the name of a directory in storage.export_dir"));
  }
  const std::string path = absl::StrCat(directory, "/", kJobFile);
  const auto bytes = ReadWholeFile(fs, path, kManifestBytesMax);
  if (absl::IsNotFound(bytes.status())) {
    if (std::find(names->begin(), names->end(), kJobFile) != names->end()) {
      return LinkToNothing(path);
    }
    return Bad(absl::StrCat(directory, " has no ", kJobFile, ", which says what job its weights ",
                            "are of; start a job of plain weights in the script that trains it: ",
                            "opt.load_export(DIRECTORY)"));
  }
  if (absl::IsInvalidArgument(bytes.status())) return Bad(bytes.status().message());
  BALLAST_RETURN_IF_ERROR(bytes.status());
  absl::StatusOr<SnapshotManifest> manifest = DecodeManifest(*bytes);
  if (absl::IsDataLoss(manifest.status())) {
    return Bad(absl::StrCat(path, ": ", manifest.status().message()));
  }
  return manifest;
}

absl::StatusOr<std::unique_ptr<ImportSource>> ImportSource::Open(
    FileSystem* fs, const std::string& directory, const JobSpec& spec, const Layout& layout,
    const ExportOrigin& origin, simd::Isa isa) {
  std::unique_ptr<ImportSource> source(new ImportSource(spec, layout, origin, isa));
  BALLAST_RETURN_IF_ERROR(source->OpenFiles(fs, directory, "model", &source->weights_));
  const std::string state = absl::StrCat(directory, "/", kStateDirectory);
  const absl::Status listed = fs->List(state).status();
  if (!listed.ok() && !absl::IsNotFound(listed)) return listed;
  source->has_state_ = listed.ok();
  if (source->has_state_)
    BALLAST_RETURN_IF_ERROR(source->OpenFiles(fs, state, "state", &source->state_));
  source->locations_.resize(spec.tensors.size());
  source->tensor_step_.resize(spec.tensors.size(), 0);
  for (uint32_t t = 0; t < spec.tensors.size(); ++t) BALLAST_RETURN_IF_ERROR(source->Check(t));
  return source;
}

// All files of the directory that begin with `stem`: an index adds nothing to their headers.
absl::Status ImportSource::OpenFiles(FileSystem* fs, const std::string& directory,
                                     absl::string_view stem, Tensors* tensors) {
  BALLAST_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs->List(directory));
  bool any = false;
  for (const std::string& name : names) {
    if (!absl::StartsWith(name, stem) || !absl::EndsWith(name, kSuffix)) continue;
    any = true;
    BALLAST_RETURN_IF_ERROR(AddReader(fs, absl::StrCat(directory, "/", name), tensors));
  }
  if (any) return absl::OkStatus();
  const bool state = stem != "model";
  return Bad(absl::StrCat(directory, " has no files ", stem, "*", kSuffix,
                          state ? "; if it is not of this export, move it away: the weights are "
                                  "then imported alone"
                                : ""));
}

absl::Status ImportSource::AddReader(FileSystem* fs, const std::string& path, Tensors* tensors) {
  absl::StatusOr<std::unique_ptr<SafetensorsReader>> reader = SafetensorsReader::Open(fs, path);
  if (absl::IsInvalidArgument(reader.status())) return Bad(reader.status().message());
  if (absl::IsNotFound(reader.status())) return LinkToNothing(path);
  BALLAST_RETURN_IF_ERROR(reader.status());
  BALLAST_RETURN_IF_ERROR(CheckOrigin(path, (*reader)->header().metadata));
  const std::vector<TensorEntry>& entries = (*reader)->header().tensors;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (tensors->emplace(entries[i].name, Location{reader->get(), i}).second) continue;
    return Bad(absl::StrCat(path, ": tensor ", Quoted(entries[i].name),
                            " is in another file of this export, too"));
  }
  readers_.push_back(*std::move(reader));
  return absl::OkStatus();
}

absl::Status ImportSource::CheckOrigin(const std::string& path,
                                       const std::map<std::string, std::string>& metadata) const {
  for (const auto& [key, ours] : origin_) {
    const auto said = metadata.find(key);
    if (said == metadata.end() || said->second == ours) continue;
    const absl::string_view what = key == kRoundKey ? "round " : "snapshot ";
    return Bad(absl::StrCat(path, " is of ", what, Quoted(said->second), ", its ", key, ", and ",
                            kJobFile, " of ", what, ours,
                            "; put the files of one export together, or export again"));
  }
  return absl::OkStatus();
}

// A tensor of its parameter's shape, and with a prefix of fp32.
absl::StatusOr<ImportSource::Location> ImportSource::Find(const TensorSpec& tensor,
                                                          absl::string_view prefix) const {
  const std::string name = absl::StrCat(prefix, tensor.name);
  const Tensors& tensors = prefix.empty() ? weights_ : state_;
  const auto found = tensors.find(name);
  if (found == tensors.end()) {
    return Bad(absl::StrCat("the export has no tensor ", Quoted(name)));
  }
  const TensorEntry& entry = found->second.reader->header().tensors[found->second.entry];
  const std::vector<uint64_t> shape(tensor.shape.begin(), tensor.shape.end());
  if (entry.shape != shape) {
    return Bad(absl::StrCat("tensor ", Quoted(name), " has shape ", ShapeText(entry.shape),
                            " in the export, and ", ShapeText(shape), " in the job"));
  }
  const bool fits =
      prefix.empty() ? FromSafeDType(entry.dtype).ok() : entry.dtype == SafeDType::kF32;
  if (fits) return found->second;
  return Bad(absl::StrCat("tensor ", Quoted(name), " has dtype ", SafeDTypeName(entry.dtype),
                          "; expected is F32", prefix.empty() ? ", BF16 or F16" : ""));
}

absl::Status ImportSource::Check(uint32_t t) {
  const TensorSpec& tensor = spec_.tensors[t];
  Locations& locations = locations_[t];
  locations.resize(StateArrayCount(spec_));
  const bool master = state_.count(absl::StrCat(kMasterPrefix, tensor.name)) != 0;
  BALLAST_ASSIGN_OR_RETURN(locations[0], Find(tensor, master ? kMasterPrefix : ""));
  if (has_state_) {
    for (uint32_t array = 1; array < locations.size(); ++array) {
      BALLAST_ASSIGN_OR_RETURN(locations[array], Find(tensor, ArrayPrefix(spec_, array)));
    }
    BALLAST_RETURN_IF_ERROR(ReadSteps(t));
  }
  for (const Location& location : locations) {
    if (location.reader != nullptr)
      bytes_ += location.reader->header().tensors[location.entry].bytes();
  }
  return absl::OkStatus();
}

absl::Status ImportSource::ReadSteps(uint32_t t) {
  const std::string name = absl::StrCat(kStepPrefix, spec_.tensors[t].name);
  const auto found = state_.find(name);
  if (found == state_.end()) {
    return Bad(absl::StrCat("the export has no tensor ", Quoted(name)));
  }
  const TensorEntry& entry = found->second.reader->header().tensors[found->second.entry];
  int64_t step = -1;
  if (entry.dtype == SafeDType::kI64 && entry.bytes() == sizeof(step)) {
    BALLAST_RETURN_IF_ERROR(
        found->second.reader->ReadAt(found->second.entry, 0, sizeof(step), &step));
  }
  if (step < 0 || static_cast<uint64_t>(step) > kStepCountMax) {
    return Bad(absl::StrCat("tensor ", Quoted(name), " is no I64 from 0 to ", kStepCountMax));
  }
  tensor_step_[t] = static_cast<uint64_t>(step);
  return absl::OkStatus();
}

size_t ImportSource::scratch_bytes() const {
  return 2 * (size_t{layout_.extent_elements()} * sizeof(float) + 2 * kPageBytes);
}

absl::Status ImportSource::ReadExtent(uint32_t extent_id, float* image, char* scratch) const {
  const Extent& extent = layout_.extents()[extent_id];
  const uint32_t arrays = StateArrayCount(spec_);
  std::memset(image, 0, size_t{extent.elements} * arrays * sizeof(float));
  for (uint32_t array = 0; array < arrays; ++array) {
    if (has_state_ || InitialValue(spec_, array) == 0) continue;
    const std::vector<float> initial(extent.elements, InitialValue(spec_, array));
    ArrayPieces{layout_, extent_id, arrays, array}.Scatter(initial.data(), 0, extent.elements,
                                                           image);
  }
  for (uint32_t i = 0; i < extent.run_count; ++i) {
    const Run& run = layout_.runs()[extent.first_run + i];
    for (uint32_t array = 0; array < arrays; ++array) {
      BALLAST_RETURN_IF_ERROR(ReadRun(extent_id, run, array, image, scratch));
    }
  }
  return absl::OkStatus();
}

absl::Status ImportSource::ReadRun(uint32_t extent, const Run& run, uint32_t array, float* image,
                                   char* scratch) const {
  const Location& location = locations_[run.tensor][array];
  if (location.reader == nullptr) return absl::OkStatus();  // ReadExtent has set initial values.
  const TensorEntry& entry = location.reader->header().tensors[location.entry];
  BALLAST_ASSIGN_OR_RETURN(const DType dtype, FromSafeDType(entry.dtype));
  const size_t width = SafeDTypeBytes(entry.dtype);
  BALLAST_ASSIGN_OR_RETURN(const char* from,
                           location.reader->ReadPages(location.entry, run.tensor_offset * width,
                                                      size_t{run.elements} * width, scratch));
  if (dtype != DType::kF32) {
    char* const whole = scratch + scratch_bytes() / 2;
    if (reinterpret_cast<uintptr_t>(from) % width != 0) {
      from = static_cast<char*>(std::memmove(scratch, from, size_t{run.elements} * width));
    }
    optim::Upcast(optim::Kernels(isa_), dtype)(from, reinterpret_cast<float*>(whole), run.elements);
    from = whole;
  }
  ArrayPieces{layout_, extent, StateArrayCount(spec_), array}.Scatter(from, run.extent_offset,
                                                                      run.elements, image);
  return absl::OkStatus();
}

}  // namespace ballast::server
