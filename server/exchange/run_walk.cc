#include "server/exchange/run_walk.h"

#include <algorithm>
#include <vector>

#include "common/base/status_macros.h"
#include "common/io/arena.h"
#include "server/durability/images/image_file.h"
#include "server/durability/records/read_lanes.h"

namespace ballast::server {
namespace {

// Extents under way at a time: enough for reads and writes to overlap.
constexpr int kRunLanes = 4;

bool IsOf(const ExportShard& shard, const Run& run) {
  return run.tensor >= shard.first_tensor && run.tensor - shard.first_tensor < shard.tensor_count;
}

std::vector<uint32_t> ExtentsOf(const ExportShard& shard, const Layout& layout) {
  std::vector<uint32_t> extents;
  for (uint32_t extent = 0; extent < layout.extents().size(); ++extent) {
    const auto first = layout.runs().begin() + layout.extents()[extent].first_run;
    const auto end = first + layout.extents()[extent].run_count;
    if (std::any_of(first, end, [&](const Run& run) { return IsOf(shard, run); })) {
      extents.push_back(extent);
    }
  }
  return extents;
}

}  // namespace

absl::Status WalkRuns(const ExportShard& shard, const ExportSource& source,
                      absl::FunctionRef<absl::Status(const RunState&)> visit) {
  const Layout& layout = *source.layout;
  const std::vector<uint32_t> extents = ExtentsOf(shard, layout);
  const size_t image_bytes =
      ImageFile::BufferBytes(ImageShape{0, layout.extent_elements(), source.arrays});
  const size_t run_bytes = size_t{layout.extent_elements()} * sizeof(float) + 2 * kPageBytes;
  BALLAST_ASSIGN_OR_RETURN(ReadLanes lanes,
                           ReadLanes::Create(kRunLanes, image_bytes + 2 * run_bytes));
  return lanes.ForEach(extents.size(), [&](size_t i, const Arena& scratch) -> absl::Status {
    const Extent& extent = layout.extents()[extents[i]];
    if (source.go_on) BALLAST_RETURN_IF_ERROR(source.go_on());
    BALLAST_RETURN_IF_ERROR(source.read(extents[i], scratch.data()));
    for (uint32_t r = 0; r < extent.run_count; ++r) {
      const Run& run = layout.runs()[extent.first_run + r];
      if (!IsOf(shard, run)) continue;
      char* const first = scratch.data() + image_bytes;
      BALLAST_RETURN_IF_ERROR(
          visit({extents[i], run, reinterpret_cast<const float*>(scratch.data()), first,
                 first + run_bytes}));
    }
    return absl::OkStatus();
  });
}

}  // namespace ballast::server
