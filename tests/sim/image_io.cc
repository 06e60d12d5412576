#include "tests/sim/image_io.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace ballast::sim {
namespace {

// Threads of a tier, as far as they matter here.
constexpr int kFlushesMax = 3;

}  // namespace

void SimImageIo::Later(Tick full, std::function<absl::Status()> work, Done done) {
  ++under_way_;
  const Tick delay = deps_.world->random().Between(full / 4, full);
  const uint64_t number = ++last_number_;
  waiting_[number] = {std::move(work), std::move(done)};
  deps_.world->AfterInLife(delay, deps_.node, life_, EventKind::kImages,
                           [this, number] { Run(number); });
}

void SimImageIo::Run(uint64_t number) {
  const auto found = waiting_.find(number);
  if (found == waiting_.end()) return;  // It ran beside a flush.
  const Operation operation = std::move(found->second);
  waiting_.erase(found);
  const absl::Status status = operation.work();
  if (deps_.world->Life(deps_.node) != life_) return;
  // Never from inside a flush.
  if (flushing_ > 0) {
    deps_.world->AfterInLife(0, deps_.node, life_, EventKind::kImages,
                             [this, status, done = operation.done] {
                               --under_way_;
                               done(status);
                             });
    return;
  }
  --under_way_;
  operation.done(status);
}

void SimImageIo::RunBeside() {
  while (!waiting_.empty() && deps_.world->Life(deps_.node) == life_ && flushing_ < kFlushesMax &&
         deps_.world->random().OneIn(2)) {
    const auto which = static_cast<ptrdiff_t>(deps_.world->random().Below(waiting_.size()));
    Run(std::next(waiting_.begin(), which)->first);
  }
}

void SimImageIo::Read(uint32_t extent, void* to, Done done) {
  deps_.world->Met(Cover::kExtentLoaded);
  Later(
      deps_.pace->image_write,
      [this, extent, to] {
        const std::vector<uint64_t> versions = images_->Versions(extent);
        if (versions.empty()) return images_->Read(extent, 0, to);
        const bool older = deps_.mutant == Mutant::kReadOlderImage;
        return images_->Read(extent, older ? versions.back() : versions.front(), to);
      },
      std::move(done));
}

void SimImageIo::Write(server::ExtentImage image, Done done) {
  if (!image.initial) deps_.world->Met(Cover::kExtentWrittenBack);
  Later(
      deps_.pace->image_write, [this, image = std::move(image)] { return WriteNow(image); },
      std::move(done));
}

void SimImageIo::Flush(Done done) {
  Later(
      deps_.pace->image_sync, [this] { return FlushNow(); }, std::move(done));
}

absl::Status SimImageIo::WriteNow(const server::ExtentImage& image) {
  if (!image.initial && deps_.mutant == Mutant::kEvictUnwritten) return absl::OkStatus();
  if (image.initial && deps_.mutant != Mutant::kKeepInitialImage) images_->Forget(image.extent);
  if (image.initial) counted_.erase(image.extent);
  if (images_->NeedsSync(image.extent)) BALLAST_RETURN_IF_ERROR(FlushNow());
  if (deps_.mutant == Mutant::kHeldImageOverwritten) images_->LetGo(image.extent);
  BALLAST_RETURN_IF_ERROR(
      images_->Write(image.extent, image.version, image.data, image.chunk_crcs));
  written_[{image.extent, image.version}] = deps_.disk->operations();
  newest_[image.extent] = image.version;
  return absl::OkStatus();
}

absl::Status SimImageIo::FlushNow() {
  std::vector<uint32_t> unflushed;
  for (const auto& [extent, version] : newest_) {
    if (images_->NeedsSync(extent)) unflushed.push_back(extent);
  }
  if (++flushing_ > 1) deps_.world->Met(Cover::kFlushesOverlap);
  const absl::Status status = images_->Sync();
  --flushing_;
  BALLAST_RETURN_IF_ERROR(status);
  if (deps_.world->Life(deps_.node) != life_) return absl::OkStatus();
  for (const uint32_t extent : unflushed) {
    if (deps_.mutant == Mutant::kFlushCountsLaterWrites) counted_[extent] = newest_[extent];
  }
  CheckFlushed();
  flushed_();
  return absl::OkStatus();
}

uint64_t SimImageIo::Flushed(uint32_t extent) const {
  const auto counted = counted_.find(extent);
  return std::max(images_->Flushed(extent), counted == counted_.end() ? 0 : counted->second);
}

void SimImageIo::CheckFlushed() const {
  for (const auto& [extent, newest] : newest_) {
    const auto written = written_.find({extent, Flushed(extent)});
    if (!deps_.power || written == written_.end()) continue;
    if (written->second <= deps_.disk->images_synced()) continue;
    deps_.world->Red(absl::StrCat("version ", written->first.second, " of extent ", extent,
                                  " counts as flushed, and no flush has covered it"));
  }
}

}  // namespace ballast::sim
