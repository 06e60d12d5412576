#include "server/operator/share_maker.h"

#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "server/durability/records/read_lanes.h"
#include "server/operator/image_work.h"
#include "server/operator/job_maker.h"

namespace ballast::server {
namespace {

// Extents under way at a time: enough for reads and writes to overlap.
constexpr int kLanes = 4;

}  // namespace

absl::Status ShareMaker::Make(const JobPlan& plan, const JobStore::Fill& fill) {
  BALLAST_RETURN_IF_ERROR(self_->CheckServers(plan));
  if (const auto other = store_->FindNamed(plan.name()); other.ok()) {
    // Unknown to the home: an interrupted earlier order has left it.
    if (!other->making) {
      return NameInUse(plan.spec.name, absl::StrCat("exists on server ", self_->id()));
    }
    BALLAST_RETURN_IF_ERROR(store_->Remove(other->job));
  }
  JobPlan made = plan;
  made.making = self_->id() != plan.servers.front();
  return self_->WithPlace(store_->Create(made, fill).status());
}

absl::Status ShareMaker::Fill(const Filling& filling, const JobPlan& plan, const Layout& layout,
                              const ReadState& read) {
  const std::vector<ImageShape> owned = OwnedShapes(plan, layout, self_->id());
  const std::shared_ptr<Work> work = BeginImageWork(works_, filling.kind, plan.spec.name, owned);
  const size_t image_bytes =
      ImageFile::BufferBytes({0, layout.extent_elements(), StateArrayCount(plan.spec)});
  BALLAST_ASSIGN_OR_RETURN(ReadLanes lanes,
                           ReadLanes::Create(kLanes, image_bytes + filling.scratch_bytes));
  const auto fill = [&](size_t i, const Arena& memory) -> absl::Status {
    const uint32_t extent = owned[i].extent;
    const uint64_t payload = ImageFile::PayloadBytes(owned[i]);
    BALLAST_RETURN_IF_ERROR(filling.cancel->status());
    BALLAST_RETURN_IF_ERROR(read(extent, memory.data(), memory.data() + image_bytes));
    std::memset(memory.data() + payload, 0, ImageFile::BufferBytes(owned[i]) - payload);
    BALLAST_RETURN_IF_ERROR(filling.images->Write(extent, plan.resting_round, memory.data()));
    work->done_bytes += payload;
    return absl::OkStatus();
  };
  BALLAST_RETURN_IF_ERROR(lanes.ForEach(owned.size(), fill));
  return filling.images->Sync();
}

}  // namespace ballast::server
