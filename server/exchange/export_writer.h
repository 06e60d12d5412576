// ExportWriter: writes the files of one shard of an export out of the states of a job's extents,
// each of which is read once.
// Comes from: Exporter, with the parts of a snapshot. Goes to: SafetensorsWriter.
// Thread safety: blocks on the disk; on a thread of its own, and threads that it starts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/io/file.h"
#include "common/tensor/layout.h"
#include "server/exchange/export_plan.h"
#include "server/simd/isa.h"

namespace ballast::server {

struct ExportSource {
  const Layout* layout = nullptr;
  uint32_t arrays = 0;  // of the state, StateArrayCount
  // Reads the state of an extent as an image holds it, into ImageFile::BufferBytes on pages. Any
  // thread, one call for an extent at a time.
  std::function<absl::Status(uint32_t extent, void* image)> read;
  std::vector<uint64_t> tensor_step;
  simd::Isa isa = simd::Isa::kScalar;  // of the kernels that round weights
  // Called, on any thread, before each extent is read; an error ends the work and is returned. May
  // be empty.
  std::function<absl::Status()> go_on;
  // Runs, on any thread, after `bytes` more bytes are written; may be empty.
  std::function<void(uint64_t bytes)> progress;
};

// Writes the files of `shard` below the existing `directory`. They take their names when all of
// their bytes survive; after an error no partial file is left. Errors: those of `read`, of `go_on`
// and of SafetensorsWriter; RESOURCE_EXHAUSTED.
absl::Status WriteExport(FileSystem* fs, const std::string& directory, const ExportShard& shard,
                         const ExportSource& source);

}  // namespace ballast::server
