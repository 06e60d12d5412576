#include "server/recovery/capture.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/faults/mutant.h"
#include "common/job/optimizer.h"
#include "server/durability/images/image_file.h"
#include "server/recovery/replay.h"
#include "server/tier/tile_layout.h"

namespace ballast::server {
namespace {

absl::Status Changed(uint64_t round) {
  BALLAST_PROBE(kHeldLogEnded);
  return absl::AbortedError(
      absl::StrCat("the log that the snapshot holds ends before round ", round,
                   ", because the job has grown meanwhile; take the snapshot again"));
}

absl::Status GivenUp() { return absl::AbortedError("the snapshot was given up"); }

// Checks that the log can bring every held version to capture.round.
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

// Longest rest between two steps, while rounds get two thirds of the time.
constexpr std::chrono::milliseconds kLongestRest(50);

}  // namespace

absl::StatusOr<CapturedRound> RoundBefore(const Capture& capture) {
  const auto before = capture.rounds.find(capture.round - 1);
  // Only the log of a job made from such a snapshot has round 0; otherwise the caller, which knows
  // the job, fills it in.
  if (before == capture.rounds.end() && capture.round == 1) return CapturedRound();
  if (before == capture.rounds.end() || !before->second.prepared.has_value() ||
      !before->second.decision.has_value()) {
    return Changed(capture.round);
  }
  return CapturedRound{*before->second.prepared, *before->second.decision};
}

absl::StatusOr<std::unique_ptr<CaptureSteps>> CaptureSteps::Create(const Capture& capture,
                                                                   TakeExtent take) {
  BALLAST_RETURN_IF_ERROR(CheckRounds(capture));
  BALLAST_ASSIGN_OR_RETURN(RoundReplay::Lane lane, RoundReplay::MakeLane(capture.layout));
  BALLAST_ASSIGN_OR_RETURN(
      std::unique_ptr<ExtentStore> store,
      RoundReplay::MakeScratch(capture.optimizer, capture.layout, capture.kernels));
  return std::unique_ptr<CaptureSteps>(
      new CaptureSteps(capture, std::move(take), std::move(lane), std::move(store)));
}

CaptureSteps::CaptureSteps(const Capture& capture, TakeExtent take, RoundReplay::Lane lane,
                           std::unique_ptr<ExtentStore> store)
    : capture_(capture),
      take_(std::move(take)),
      replay_(capture.optimizer, capture.layout, capture.rounds, capture.round,
              [log = capture.log.get()](const LoggedExtent& from, void* to) {
                return log->ReadHeld(from, to);
              }),
      lane_(std::move(lane)),
      store_(std::move(store)) {
  for (const auto& [extent, version] : capture.held.versions) left_.emplace_back(version, extent);
  // The oldest first: the log wants to forget its rounds.
  std::sort(left_.rbegin(), left_.rend());
}

absl::StatusOr<bool> CaptureSteps::Step() {
  if (left_.empty()) return false;
  auto& [version, extent] = left_.back();
  if (!read_) {
    BALLAST_RETURN_IF_ERROR(Read());
  } else if (version < capture_.round) {
    RoundReplay::Progress progress;
    BALLAST_RETURN_IF_ERROR(replay_.Apply(extent, version++, store_.get(), &lane_, &progress));
  } else {
    BALLAST_RETURN_IF_ERROR(HandOn());
  }
  return true;
}

absl::Status CaptureSteps::Read() {
  const auto [version, extent] = left_.back();
  float* const state = store_->State(extent);
  BALLAST_RETURN_IF_ERROR(capture_.log->ReadHeld(extent, version, state));
  const Layout& layout = capture_.layout;
  tier::SpreadLastTile(layout.extents()[extent].elements, layout.tile_elements(),
                       StateArrayCount(capture_.optimizer), state);
  read_ = true;
  return absl::OkStatus();
}

absl::Status CaptureSteps::HandOn() {
  const uint32_t extent = left_.back().second;
  const Layout& layout = capture_.layout;
  const uint32_t elements = layout.extents()[extent].elements;
  const ImageShape shape{extent, elements, StateArrayCount(capture_.optimizer)};
  float* const state = store_->State(extent);
  tier::PackLastTile(elements, layout.tile_elements(), StateArrayCount(capture_.optimizer), state);
  const uint64_t payload = ImageFile::PayloadBytes(shape);
  std::memset(reinterpret_cast<char*>(state) + payload, 0, ImageFile::BufferBytes(shape) - payload);
  BALLAST_RETURN_IF_ERROR(take_(extent, state));
  capture_.log->LetGo(extent);
  left_.pop_back();
  read_ = false;
  return absl::OkStatus();
}

absl::Status CaptureExtents(const Capture& capture, const TakeExtent& take,
                            const std::atomic<bool>& cancelled) {
  BALLAST_ASSIGN_OR_RETURN(const auto steps, CaptureSteps::Create(capture, take));
  while (!cancelled) {
    BALLAST_ASSIGN_OR_RETURN(const bool stepped, steps->Step());
    if (!stepped) return absl::OkStatus();
  }
  return GivenUp();
}

// --- While rounds continue ----------------------------------------------------------------------

std::shared_ptr<CaptureRun> CaptureRun::Start(Capture capture, TakeExtent take,
                                              std::shared_ptr<Executor> executor, const Clock* pace,
                                              Done done) {
  auto run = std::make_shared<CaptureRun>(std::move(capture), std::move(take), std::move(executor),
                                          pace, std::move(done));
  run->capture_.log->ReadRounds(run->capture_.round,
                                [executor = run->executor_, weak = run->weak_from_this()](
                                    const absl::StatusOr<StateHolds::HeldRounds>& rounds) {
                                  executor->Post([weak, rounds] {
                                    if (const auto self = weak.lock()) self->Begin(rounds);
                                  });
                                });
  return run;
}

CaptureRun::CaptureRun(Capture capture, TakeExtent take, std::shared_ptr<Executor> executor,
                       const Clock* pace, Done done)
    : executor_(std::move(executor)),
      pace_(pace),
      take_(std::move(take)),
      capture_(std::move(capture)),
      done_(std::move(done)) {}

void CaptureRun::Begin(const absl::StatusOr<StateHolds::HeldRounds>& rounds) {
  if (!rounds.ok()) return End(rounds.status());
  capture_.rounds = *rounds;
  absl::StatusOr<CapturedRound> before = RoundBefore(capture_);
  if (!before.ok()) return End(before.status());
  before_ = *std::move(before);
  auto steps = CaptureSteps::Create(capture_, std::move(take_));
  if (!steps.ok()) return End(steps.status());
  steps_ = *std::move(steps);
  Next(std::chrono::nanoseconds(0));
}

void CaptureRun::Next(std::chrono::nanoseconds rest) {
  executor_->PostAfter(rest, [self = shared_from_this()] { self->Step(); });
}

void CaptureRun::Step() {
  if (cancelled_) return End(GivenUp());
  const auto began = pace_ == nullptr ? std::chrono::nanoseconds(0) : pace_->Now();
  const absl::StatusOr<bool> stepped = steps_->Step();
  if (!stepped.ok()) return End(stepped.status());
  if (!*stepped) return End(absl::OkStatus());
  if (pace_ == nullptr) return Next(std::chrono::nanoseconds(0));
  Next(std::min<std::chrono::nanoseconds>(2 * (pace_->Now() - began), kLongestRest));
}

void CaptureRun::End(const absl::Status& status) {
  const Done done = std::exchange(done_, nullptr);
  if (!done) return;
  steps_ = nullptr;
  capture_.log->LetAllGo();
  capture_.log = nullptr;
  status.ok() ? done(*before_) : done(status);
}

void CaptureRun::Abandon() { End(GivenUp()); }

}  // namespace ballast::server
