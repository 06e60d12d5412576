// ImportSource: the contents of an export, as the states of a job's extents. Its files are not
// trusted: everything is checked before memory is taken for it.
// Comes from: Importer. Goes to: SafetensorsReader, the images of a new job.
// Thread safety: immutable after Open; ReadExtent may be called from any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/file.h"
#include "common/job/job_spec.h"
#include "common/safetensors/reader.h"
#include "common/tensor/layout.h"
#include "server/exchange/export_plan.h"
#include "server/simd/isa.h"
#include "server/snapshot/manifest.h"

namespace ballast::server {

// The file that describes an export's job. Errors: NOT_FOUND UNKNOWN_JOB: there is no export of
// this name; INVALID_ARGUMENT BAD_ARGUMENT: the directory holds weights only, or a file that this
// program has not written; FAILED_PRECONDITION: a newer version.
absl::StatusOr<SnapshotManifest> ReadJobFile(FileSystem* fs, const std::string& directory);

class ImportSource {
 public:
  // Opens the files below `directory` and compares them with the job's tensors and with the job
  // that kJobFile names; files without one are accepted. `fs` outlives the result; `isa`: of the
  // kernels that widen weights. Errors name file and tensor: INVALID_ARGUMENT BAD_ARGUMENT: a
  // tensor is missing, occurs twice, or has another shape or a dtype not of its kind; a file is of
  // another export, or a link to nothing; errors of SafetensorsReader::Open.
  static absl::StatusOr<std::unique_ptr<ImportSource>> Open(
      FileSystem* fs, const std::string& directory, const JobSpec& spec, const Layout& layout,
      const ExportOrigin& origin, simd::Isa isa);

  // Whether there is optimizer state; else only the masters
  // are not zero, and no steps were taken.
  bool has_state() const { return has_state_; }
  // By tensor of the job.
  const std::vector<uint64_t>& tensor_step() const { return tensor_step_; }
  // Bytes of tensors that the job is made of.
  uint64_t bytes() const { return bytes_; }

  // Bytes of scratch memory that ReadExtent wants.
  size_t scratch_bytes() const;
  // Reads the state of an extent into `image`, as an image holds it; `scratch` is on pages. Errors:
  // SafetensorsReader's.
  absl::Status ReadExtent(uint32_t extent, float* image, char* scratch) const;

 private:
  struct Location {
    const SafetensorsReader* reader = nullptr;  // null: there is none
    size_t entry = 0;
  };
  // Where a tensor's state arrays come from, the master first.
  using Locations = std::vector<Location>;

  ImportSource(const JobSpec& spec, const Layout& layout, const ExportOrigin& origin, simd::Isa isa)
      : spec_(spec), layout_(layout), origin_(OriginMetadata(origin)), isa_(isa) {}

  using Tensors = std::map<std::string, Location>;
  absl::Status OpenFiles(FileSystem* fs, const std::string& directory, absl::string_view stem,
                         Tensors* tensors);
  absl::Status AddReader(FileSystem* fs, const std::string& path, Tensors* tensors);
  // `metadata`: that of a file at `path`.
  absl::Status CheckOrigin(const std::string& path,
                           const std::map<std::string, std::string>& metadata) const;
  absl::StatusOr<Location> Find(const TensorSpec& tensor, absl::string_view prefix) const;
  absl::Status Check(uint32_t tensor);
  absl::Status ReadSteps(uint32_t tensor);
  absl::Status ReadRun(uint32_t extent, const Run& run, uint32_t array, float* image,
                       char* scratch) const;

  const JobSpec spec_;
  const Layout layout_;
  const std::map<std::string, std::string> origin_;
  const simd::Isa isa_;
  bool has_state_ = false;
  uint64_t bytes_ = 0;
  std::vector<std::unique_ptr<SafetensorsReader>> readers_;
  // Of the two kinds of files: a weight may have the name of another one's state.
  Tensors weights_;
  Tensors state_;
  std::vector<Locations> locations_;  // by tensor of the job
  std::vector<uint64_t> tensor_step_;
};

}  // namespace ballast::server
