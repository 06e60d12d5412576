#include "server/recovery/recovery.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/base/mutant.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "server/recovery/replay.h"
#include "server/tier/tile_layout.h"

namespace ballast::server {
namespace {

// Bounds for what EncodePrepared and EncodeDecision write, together. Per tensor: its step, its bit,
// and twice a set of scalars, should no two tensors have taken equally many steps; or the step that
// an upload sets, which has no scalars.
constexpr uint64_t kRecordBytesPerTensor = 128;
constexpr uint64_t kRecordBytesPerExtent = 16;
constexpr uint64_t kRecordBytesPerGroup = 8;
// Of a job whose policy state has version 2: rates in the vote and in two policy states.
constexpr uint64_t kRecordBytesPerRates = 3 * sizeof(GroupRates);
constexpr uint64_t kRecordBytesFixed = 1024;
// Of what EncodeRatios writes beside them: a ratio per tensor, and squares per run, of which there
// are fewer than tensors and extents.
constexpr uint64_t kRatioBytesPerTensor = 28;
constexpr uint64_t kRatioBytesPerExtent = 24;
// Per slot, at the home.
constexpr uint64_t kRecordBytesPerUserState = 8;  // beside its bytes

ImageShape ShapeOf(const JobSpec& spec, const Layout& layout, uint32_t extent) {
  return {extent, layout.extents()[extent].elements, StateArrayCount(spec)};
}

// The second vote of a round is the first with what its RATIOS record has.
void AddSquares(const LoggedRound& logged, Vote* vote) {
  if (logged.ratios.has_value()) vote->squares = logged.ratios->squares;
}

// What became of one extent.
struct Loaded {
  absl::Status status;
  bool init_missing = false;
  bool ahead = false;
  RoundReplay::Progress replay;  // since the image that the state comes from
  uint64_t version = 0;          // of that image, or of one that the placement has written since
  uint64_t replayed_rounds = 0;
  uint64_t image_bytes = 0;
  uint64_t log_bytes = 0;  // of all images that were tried
};

// What one thread needs.
struct Lane {
  size_t number = 0;
  RoundReplay::Lane replay;
  ExtentStore store;  // where it rebuilds extents
};

// One server's recovery. What is known of the log is gathered first; loading extents only reads it.
class Recovery {
 public:
  Recovery(const JobPlan& plan, const Layout& layout, JobStorage* storage, ModelState* state,
           ExecutorSource* executors, std::atomic<uint64_t>* done)
      : plan_(plan),
        layout_(layout),
        storage_(storage),
        state_(state),
        executors_(executors),
        done_(done) {}

  absl::StatusOr<Recovered> Run(const std::vector<uint32_t>& owned, int lanes);

 private:
  const LoggedRound* Round(uint64_t round) const {
    const auto& rounds = storage_->log()->rounds();
    const auto it = rounds.find(round);
    return it == rounds.end() ? nullptr : &it->second;
  }
  void FindRound(const std::vector<uint32_t>& owned);
  absl::Status CheckEpochs() const;
  absl::Status CheckPolicy() const;
  absl::Status CheckNotBeyond(uint32_t extent, uint64_t version) const;
  absl::Status StateLost(const std::string& why) const;
  absl::StatusOr<std::vector<Lane>> MakeLanes(size_t count);
  std::vector<Loaded> LoadAll(const std::vector<uint32_t>& owned, std::vector<Lane>* lanes);
  absl::Status Merge(const std::vector<uint32_t>& owned, const std::vector<Loaded>& loaded);
  bool Unvoted(uint32_t extent) const;
  // Of one extent; any thread.
  absl::Status Load(uint32_t extent, Lane* lane, Loaded* loaded);
  absl::Status LoadVersion(uint32_t extent, uint64_t version, Lane* lane, Loaded* loaded);
  absl::Status Keep(uint32_t extent, const Lane& lane, Loaded* loaded) const;

  const JobPlan& plan_;
  const Layout& layout_;
  JobStorage* const storage_;
  ModelState* const state_;
  ExecutorSource* const executors_;
  std::atomic<uint64_t>* const done_;  // may be null
  Recovered out_;
  std::optional<RoundReplay> replay_;
};

// Which round is open, and with which policy and step counts it begins.
void Recovery::FindRound(const std::vector<uint32_t>& owned) {
  Restored& fsm = out_.fsm;
  fsm.round = plan_.epoch.start_round;
  fsm.policy = StartPolicy(plan_.spec);
  fsm.tensor_step.assign(layout_.tensors().size(), 0);
  for (const auto& [round, logged] : storage_->log()->rounds()) {
    if (!logged.decision.has_value() || !logged.prepared.has_value()) continue;
    if (round + 1 < fsm.round) continue;
    const Decision& decision = logged.decision->decision;
    fsm.round = round + 1;
    fsm.policy = decision.policy;
    fsm.tensor_step = StepsAfter(*logged.prepared, decision);
    fsm.tensor_step.resize(layout_.tensors().size(), 0);
    fsm.last_prepared = logged.prepared;
    AddSquares(logged, &fsm.last_prepared->vote);
    out_.last_decision = logged.decision;
  }
  const LoggedRound* const open = Round(fsm.round);
  if (open != nullptr && open->prepared.has_value() && open->prepared->epoch == plan_.epoch.epoch) {
    fsm.prepared = open->prepared;
    AddSquares(*open, &fsm.prepared->vote);
    const bool ratios = open->ratios.has_value() && !BALLAST_MUTANT(kForgetRatios);
    if (ratios) fsm.ratios = open->ratios->ratios;
    fsm.policy = open->prepared->policy;
    fsm.tensor_step = open->prepared->tensor_step;
  }
  for (const uint32_t extent : owned) {
    if (open == nullptr) break;
    const auto logged = open->extents.find(extent);
    if (logged == open->extents.end() || logged->second.epoch != plan_.epoch.epoch) continue;
    out_.open_extents[extent] = logged->second;
    fsm.reduced[extent] = {extent, logged->second.sumsq, logged->second.nonfinite,
                           logged->second.first_nonfinite};
  }
}

absl::StatusOr<Recovered> Recovery::Run(const std::vector<uint32_t>& owned, int lanes) {
  BALLAST_FAILPOINT_RETURN("recovery.before_load");
  FindRound(owned);
  BALLAST_RETURN_IF_ERROR(CheckEpochs());
  BALLAST_RETURN_IF_ERROR(CheckPolicy());
  replay_.emplace(OptimizerOf(plan_.spec), layout_, storage_->log()->rounds(), out_.fsm.round,
                  [log = storage_->log()](const LoggedExtent& from, void* to) {
                    return log->ReadExtent(from, to);
                  });
  const size_t most = std::min(static_cast<size_t>(lanes), state_->placement->recovery_lanes());
  const size_t count = std::clamp<size_t>(owned.size(), 1, most);
  BALLAST_ASSIGN_OR_RETURN(std::vector<Lane> made, MakeLanes(count));
  BALLAST_RETURN_IF_ERROR(Merge(owned, LoadAll(owned, &made)));
  BALLAST_RETURN_IF_ERROR(state_->placement->EndRecovery(out_.image_versions, storage_->images()));
  BALLAST_FAILPOINT_RETURN("recovery.after_load");
  return std::move(out_);
}

absl::StatusOr<std::vector<Lane>> Recovery::MakeLanes(size_t count) {
  std::vector<Lane> lanes;
  for (size_t i = 0; i < count; ++i) {
    BALLAST_ASSIGN_OR_RETURN(RoundReplay::Lane replay, RoundReplay::MakeLane(layout_));
    Tier* const tier = state_->placement->RecoveryTier(i);
    lanes.push_back({i, std::move(replay), ExtentStore(tier, state_->store.kernels())});
  }
  return lanes;
}

// Extents are begun in order, and none after one that failed: the first that fails, and its error,
// are the same with any number of lanes.
std::vector<Loaded> Recovery::LoadAll(const std::vector<uint32_t>& owned,
                                      std::vector<Lane>* lanes) {
  std::vector<Loaded> loaded(owned.size());
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  const auto load = [&](size_t lane) {
    while (!failed) {
      const size_t i = next++;
      if (i >= owned.size()) break;
      loaded[i].status = Load(owned[i], &(*lanes)[lane], &loaded[i]);
      if (!loaded[i].status.ok()) failed = true;
      if (done_ != nullptr) ++*done_;
    }
  };
  if (lanes->size() == 1) {
    load(0);
  } else {
    executors_->MakeWorkers("recover", static_cast<int>(lanes->size()))->Run(lanes->size(), load);
  }
  return loaded;
}

absl::Status Recovery::Merge(const std::vector<uint32_t>& owned,
                             const std::vector<Loaded>& loaded) {
  for (size_t i = 0; i < owned.size(); ++i) {
    const Loaded& one = loaded[i];
    BALLAST_RETURN_IF_ERROR(one.status);
    out_.image_versions.push_back(one.version);
    if (one.init_missing) out_.fsm.init_missing.push_back(owned[i]);
    if (one.ahead) out_.ahead.push_back(owned[i]);
    out_.replayed_rounds = std::max(out_.replayed_rounds, one.replayed_rounds);
    out_.image_bytes += one.image_bytes;
    out_.log_bytes += one.log_bytes;
  }
  return absl::OkStatus();
}

// Whether no vote has counted the extent yet: in a new job, and in groups that were added last.
bool Recovery::Unvoted(uint32_t extent) const {
  if (out_.fsm.prepared.has_value()) return false;
  if (!out_.last_decision.has_value()) return true;
  const uint32_t first_run = layout_.extents()[extent].first_run;
  return out_.fsm.round == plan_.grown_round &&
         layout_.runs()[first_run].tensor >= plan_.tensors_before;
}

// The newest image that is whole and that the log can bring to the open round.
absl::Status Recovery::Load(uint32_t extent, Lane* lane, Loaded* loaded) {
  const Restored& fsm = out_.fsm;
  const std::vector<uint64_t> versions = storage_->images()->Versions(extent);
  // Before the first vote images may be half written, or may have been read from a cache after a
  // failed flush; the trainer still has what belongs there.
  if (Unvoted(extent)) {
    storage_->images()->Forget(extent);
    loaded->init_missing = true;
    return absl::OkStatus();
  }
  BALLAST_RETURN_IF_ERROR(CheckNotBeyond(extent, versions.empty() ? 0 : versions.front()));
  absl::Status why;
  for (const uint64_t version : versions) {
    const absl::Status status = LoadVersion(extent, version, lane, loaded);
    if (!absl::IsDataLoss(status)) return status;
    BALLAST_LOG(ERROR, LogField("run", plan_.spec.name)) << status.message();
    if (why.ok()) why = status;
  }
  return StateLost(absl::StrCat("extent ", extent, " cannot be brought to round ", fsm.round, ": ",
                                why.ok() ? "it has no image" : why.message()));
}

// Version t + 1 is written only after the vote of round t was flushed, so an image beyond the log's
// end says that the log has lost what was promised. An older image would hide that.
absl::Status Recovery::CheckNotBeyond(uint32_t extent, uint64_t version) const {
  const Restored& fsm = out_.fsm;
  const bool ahead = version == fsm.round + 1 && fsm.prepared.has_value();
  if (version <= fsm.round || ahead) return absl::OkStatus();
  return StateLost(absl::StrCat("the image of extent ", extent, " holds version ", version,
                                ", but the log ends before the vote of round ", fsm.round));
}

// A new epoch's record is in the metadata store before anything of that epoch is logged, and behind
// the decision of the last round before it.
absl::Status Recovery::CheckEpochs() const {
  const uint64_t start = plan_.epoch.start_round;
  if (start > 1 && !out_.last_decision.has_value()) {
    return StateLost(absl::StrCat("the log lacks round ", start - 1, ", and epoch ",
                                  plan_.epoch.epoch, " starts with round ", start));
  }
  uint32_t newest = 0;
  for (const auto& [round, logged] : storage_->log()->rounds()) {
    if (logged.prepared.has_value()) newest = std::max(newest, logged.prepared->epoch);
    for (const auto& [extent, record] : logged.extents) newest = std::max(newest, record.epoch);
  }
  if (newest <= plan_.epoch.epoch) return absl::OkStatus();
  return StateLost(absl::StrCat("the log has records of epoch ", newest,
                                ", the job's record is older, of epoch ", plan_.epoch.epoch));
}

// A log of this job has the policy that its specification asks for.
absl::Status Recovery::CheckPolicy() const {
  const uint32_t expected = StartPolicy(plan_.spec).version;
  if (out_.fsm.policy.version == expected) return absl::OkStatus();
  return StateLost(absl::StrCat("the log's policy state has version ", out_.fsm.policy.version,
                                ", the job's specification asks for ", expected));
}

absl::Status Recovery::StateLost(const std::string& why) const {
  return ReasonedError(absl::StatusCode::kDataLoss, Reason::kStateLost,
                       absl::StrCat("job \"", plan_.spec.name, "\": ", why,
                                    ". Put the right files back, restore a snapshot, or start the ",
                                    "run again under a new name"),
                       {.job = plan_.spec.name, .round = out_.fsm.round});
}

absl::Status Recovery::LoadVersion(uint32_t extent, uint64_t version, Lane* lane, Loaded* loaded) {
  const uint64_t round = out_.fsm.round;
  // Straight to its place: what fails its checksum is read over, or the job is refused.
  float* const state = lane->store.State(extent);
  BALLAST_RETURN_IF_ERROR(storage_->images()->Read(extent, version, state));
  const uint32_t arrays = StateArrayCount(plan_.spec);
  tier::SpreadLastTile(layout_.extents()[extent].elements, layout_.tile_elements(),
                       BALLAST_MUTANT(kForgetLastArray) ? std::min(arrays, 3u) : arrays, state);
  loaded->image_bytes += ImageFile::PayloadBytes(ShapeOf(plan_.spec, layout_, extent));
  loaded->version = version;
  loaded->replay = {};
  if (version > round) {
    loaded->ahead = true;
    return absl::OkStatus();
  }
  for (uint64_t r = version; r < round; ++r) {
    BALLAST_RETURN_IF_ERROR(
        replay_->Apply(extent, r, &lane->store, &lane->replay, &loaded->replay));
  }
  loaded->log_bytes += loaded->replay.log_bytes;
  loaded->replayed_rounds = round - version;
  return Keep(extent, *lane, loaded);
}

absl::Status Recovery::Keep(uint32_t extent, const Lane& lane, Loaded* loaded) const {
  const uint64_t round = out_.fsm.round;
  const absl::StatusOr<uint64_t> kept = state_->placement->Keep({.lane = lane.number,
                                                                 .extent = extent,
                                                                 .image = loaded->version,
                                                                 .version = round,
                                                                 .stepped = loaded->replay.stepped},
                                                                storage_->images());
  if (!kept.ok()) {
    return ReasonedError(absl::StatusCode::kUnavailable, Reason::kStorageFailed,
                         absl::StrCat("job \"", plan_.spec.name, "\": extent ", extent,
                                      " cannot be written back: ", kept.status().message()),
                         {.job = plan_.spec.name, .round = round});
  }
  loaded->version = *kept;
  return absl::OkStatus();
}

}  // namespace

absl::Status StateLostIn(const JobPlan& plan, uint32_t server, const absl::Status& status) {
  if (!absl::IsDataLoss(status) && !absl::IsNotFound(status)) return status;
  if (ReasonOf(status) != Reason::kUnspecified) return status;
  const std::string what =
      absl::IsNotFound(status)
          ? absl::StrCat("server ", server, " lacks the files of job \"", plan.spec.name, "\": ")
          : absl::StrCat("job \"", plan.spec.name, "\", server ", server, ": ");
  return ReasonedError(absl::StatusCode::kDataLoss, Reason::kStateLost,
                       absl::StrCat(what, status.message(),
                                    ". Check that the right storage.data_dir is mounted; else put ",
                                    "it back as a whole, or start the run again under a new name"),
                       {.job = plan.spec.name, .server = static_cast<int>(server)});
}

StorageOptions StorageOptionsOf(const JobPlan& plan, const Layout& layout, uint32_t self,
                                uint32_t checkpoint_rounds) {
  StorageOptions options;
  options.images.job = plan.job;
  options.images.server = self;
  options.images.optimizer = static_cast<uint32_t>(plan.spec.optimizer);
  options.images.formula_id = plan.spec.formula_id;
  options.images.tile_elements = plan.spec.tile_elements;
  options.images.flush = plan.spec.durability == Durability::kPower;
  options.checkpoint_rounds = checkpoint_rounds;
  options.epoch = plan.epoch.epoch;
  options.start_round = plan.epoch.start_round;
  options.record_bytes = kRecordBytesFixed + kRecordBytesPerTensor * layout.tensors().size() +
                         kRecordBytesPerExtent * layout.extents().size() +
                         kRecordBytesPerGroup * plan.spec.group_count;
  if (plan.spec.policy.active()) {
    options.record_bytes += kRecordBytesPerRates * plan.spec.group_count;
  }
  if (OptimizerRowOf(plan.spec).passes == 2) {
    options.record_bytes += kPageBytes + kRatioBytesPerTensor * layout.tensors().size() +
                            kRatioBytesPerExtent * layout.extents().size();
  }
  if (self == plan.servers.front()) {
    const uint32_t slots = plan.spec.variable_world ? JobLimits{}.slots_max : plan.spec.world;
    options.record_bytes += UserStatesBytesMax(plan.spec) + kRecordBytesPerUserState * slots;
  }
  for (uint32_t extent = 0; extent < layout.extents().size(); ++extent) {
    if (plan.owner[extent] != self) continue;
    options.shapes.push_back(ShapeOf(plan.spec, layout, extent));
    options.gradient_bytes.push_back(uint64_t{layout.extents()[extent].elements} * sizeof(float));
  }
  return options;
}

absl::StatusOr<Recovered> Recover(const JobPlan& plan, const Layout& layout,
                                  const std::vector<uint32_t>& owned, JobStorage* storage,
                                  ModelState* state, int lanes, ExecutorSource* executors,
                                  std::atomic<uint64_t>* done) {
  return Recovery(plan, layout, storage, state, executors, done).Run(owned, lanes);
}

}  // namespace ballast::server
