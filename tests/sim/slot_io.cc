#include "tests/sim/slot_io.h"

#include <utility>
#include <vector>

#include "common/base/status_macros.h"

namespace ballast::sim {

void SimSlotIo::Later(Tick full, std::function<absl::Status()> work, Done done) {
  ++under_way_;
  const Tick delay = deps_.world->random().Between(full / 4, full);
  deps_.world->AfterInLife(delay, deps_.node, life_, EventKind::kSlots,
                           [this, work = std::move(work), done = std::move(done)] {
                             const absl::Status status = work();
                             if (deps_.world->Life(deps_.node) != life_) return;
                             --under_way_;
                             done(status);
                           });
}

void SimSlotIo::Read(uint32_t extent, void* to, Done done) {
  deps_.world->Met(Cover::kExtentLoaded);
  Later(
      deps_.pace->slot_write,
      [this, extent, to] {
        const std::vector<uint64_t> versions = slots_->Versions(extent);
        if (versions.empty()) return slots_->Read(extent, 0, to);
        const bool older = deps_.mutant == Mutant::kReadOlderSlot;
        return slots_->Read(extent, older ? versions.back() : versions.front(), to);
      },
      std::move(done));
}

void SimSlotIo::Write(server::ExtentImage image, Done done) {
  if (!image.initial) deps_.world->Met(Cover::kExtentWrittenBack);
  Later(
      deps_.pace->slot_write, [this, image = std::move(image)] { return WriteNow(image); },
      std::move(done));
}

void SimSlotIo::Flush(Done done) {
  Later(
      deps_.pace->slot_sync, [this] { return FlushNow(); }, std::move(done));
}

absl::Status SimSlotIo::WriteNow(const server::ExtentImage& image) {
  if (!image.initial && deps_.mutant == Mutant::kEvictUnwritten) return absl::OkStatus();
  if (image.initial && deps_.mutant != Mutant::kKeepInitialSlot) slots_->Forget(image.extent);
  if (slots_->NeedsSync(image.extent)) BALLAST_RETURN_IF_ERROR(FlushNow());
  return slots_->Write(image.extent, image.version, image.data);
}

absl::Status SimSlotIo::FlushNow() {
  BALLAST_RETURN_IF_ERROR(slots_->Sync());
  if (deps_.world->Life(deps_.node) == life_) flushed_();
  return absl::OkStatus();
}

}  // namespace ballast::sim
