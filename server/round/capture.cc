#include "server/round/capture.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/job/optimizer.h"
#include "server/durability/image_file.h"
#include "server/round/replay.h"
#include "server/tier/tile_layout.h"

namespace ballast::server {
namespace {

absl::Status Changed(uint64_t round) {
  return absl::AbortedError(
      absl::StrCat("the log that the snapshot holds ends before round ", round,
                   ", because the job has grown meanwhile; take the snapshot again"));
}

// Every version that is held is brought to capture.round by rounds that are there.
absl::Status CheckRounds(const Capture& capture) {
  for (const auto& [extent, version] : capture.held.versions) {
    if (version > capture.round) {
      return absl::InternalError(absl::StrCat("extent ", extent, " is held at version ", version,
                                              ", behind round ", capture.round));
    }
    for (uint64_t round = version; round < capture.round; ++round) {
      const auto logged = capture.rounds.find(round);
      if (logged == capture.rounds.end() || !logged->second.decision.has_value()) {
        return Changed(round + 1);
      }
    }
  }
  return absl::OkStatus();
}

// Extents, the oldest held version first: its rounds are what the log wants to forget.
std::vector<uint32_t> OldestFirst(const HeldState& held) {
  std::vector<std::pair<uint64_t, uint32_t>> by_version;
  for (const auto& [extent, version] : held.versions) by_version.emplace_back(version, extent);
  std::sort(by_version.begin(), by_version.end());
  std::vector<uint32_t> extents;
  for (const auto& [version, extent] : by_version) extents.push_back(extent);
  return extents;
}

// Rests between steps of the work, so that no round beside it meets all of it.
class Pace {
 public:
  explicit Pace(const Capture& capture) : rest_(capture.rest) {}

  void StepDone() {
    if (!rest_) return;
    rest_(std::chrono::steady_clock::now() - began_);
    began_ = std::chrono::steady_clock::now();
  }

 private:
  const std::function<void(std::chrono::nanoseconds)>& rest_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

}  // namespace

absl::StatusOr<CapturedRound> RoundBefore(const Capture& capture) {
  const auto before = capture.rounds.find(capture.round - 1);
  if (before == capture.rounds.end() || !before->second.prepared.has_value() ||
      !before->second.decision.has_value()) {
    return Changed(capture.round);
  }
  return CapturedRound{*before->second.prepared, *before->second.decision};
}

absl::Status CaptureExtents(const Capture& capture, const TakeExtent& take,
                            const std::atomic<bool>& cancelled) {
  BALLAST_RETURN_IF_ERROR(CheckRounds(capture));
  const Layout& layout = capture.layout;
  const RoundReplay replay(layout, capture.rounds, capture.round,
                           [log = capture.log.get()](const LoggedExtent& from, void* to) {
                             return log->ReadHeld(from, to);
                           });
  BALLAST_ASSIGN_OR_RETURN(RoundReplay::Lane lane, RoundReplay::MakeLane(layout));
  BALLAST_ASSIGN_OR_RETURN(const std::unique_ptr<ExtentStore> store,
                           RoundReplay::MakeScratch(layout, capture.kernels));
  Pace pace(capture);
  for (const uint32_t extent : OldestFirst(capture.held)) {
    if (cancelled) return absl::AbortedError("the snapshot was given up");
    const uint32_t elements = layout.extents()[extent].elements;
    const ImageShape shape{extent, elements, kAdamWStateArrays};
    float* const state = store->State(extent);
    const uint64_t version = capture.held.versions.at(extent);
    BALLAST_RETURN_IF_ERROR(capture.log->ReadHeld(extent, version, state));
    pace.StepDone();
    tier::SpreadLastTile(elements, layout.tile_elements(), kAdamWStateArrays, state);
    RoundReplay::Progress progress;
    for (uint64_t round = version; round < capture.round; ++round) {
      BALLAST_RETURN_IF_ERROR(replay.Apply(extent, round, store.get(), &lane, &progress));
      pace.StepDone();
    }
    tier::PackLastTile(elements, layout.tile_elements(), kAdamWStateArrays, state);
    const uint64_t payload = ImageFile::PayloadBytes(shape);
    std::memset(reinterpret_cast<char*>(state) + payload, 0,
                ImageFile::BufferBytes(shape) - payload);
    BALLAST_RETURN_IF_ERROR(take(extent, state));
    capture.log->LetGo(extent);
    pace.StepDone();
  }
  return absl::OkStatus();
}

}  // namespace ballast::server
