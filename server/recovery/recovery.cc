#include "server/recovery/recovery.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/faults/failpoint.h"
#include "common/faults/mutant.h"
#include "server/recovery/replay.h"
#include "server/tier/tile_layout.h"

namespace ballast::server {
namespace {

// Upper bounds of the bytes that EncodePrepared and EncodeDecision write together. Per tensor: its
// step, its bit, and two sets of scalars in case no two tensors have the same step count; or the
// step count set by an upload, which has no scalars.
constexpr uint64_t kRecordBytesPerTensor = 128;
constexpr uint64_t kRecordBytesPerExtent = 16;
constexpr uint64_t kRecordBytesPerGroup = 8;
// Policy state version 2: rates in the vote and in two policy states.
constexpr uint64_t kRecordBytesPerRates = 3 * sizeof(GroupRates);
constexpr uint64_t kRecordBytesFixed = 1024;
// EncodeRatios adds a ratio per tensor and squares per run. A job has fewer runs than tensors plus
// extents.
constexpr uint64_t kRatioBytesPerTensor = 28;
constexpr uint64_t kRatioBytesPerExtent = 24;
// Per slot, at the home.
constexpr uint64_t kRecordBytesPerUserState = 8;  // in addition to the state itself

ImageShape ShapeOf(const JobSpec& spec, const Layout& layout, uint32_t extent) {
  return {extent, layout.extents()[extent].elements, StateArrayCount(spec)};
}

// The log stores a vote once: the second vote is the first plus the squares of the RATIOS record.
void AddSquares(const LoggedRound& logged, Vote* vote) {
  if (logged.ratios.has_value()) vote->squares = logged.ratios->squares;
}

// Result of loading one extent.
struct Loaded {
  absl::Status status;
  bool init_missing = false;
  bool ahead = false;
  RoundReplay::Progress replay;  // since the image the state was read from
  uint64_t version = 0;          // of that image, or of one the placement has written since
  uint64_t replayed_rounds = 0;
  uint64_t image_bytes = 0;
  uint64_t log_bytes = 0;  // replayed over every image tried
};

// Memory of one thread.
struct Lane {
  size_t number = 0;
  RoundReplay::Lane replay;
  ExtentStore store;  // for rebuilding extents
};

// One server's recovery. It collects the facts of the log first, so that lanes only read them.
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
  // One extent; any thread.
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

// Finds the open round, and the policy and step counts it begins with.
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
    fsm.tensor_step.resize(layout_.tensors().size(), 0);  // Tensors added since have no steps.
    fsm.last_prepared = logged.prepared;
    AddSquares(logged, &fsm.last_prepared->vote);
    out_.last_decision = logged.decision;
  }
  const LoggedRound* const open = Round(fsm.round);
  // A vote of an earlier epoch does not count: the new members run that round again.
  if (open != nullptr && open->prepared.has_value() && open->prepared->epoch == plan_.epoch.epoch) {
    fsm.prepared = open->prepared;
    AddSquares(*open, &fsm.prepared->vote);
    const bool ratios = open->ratios.has_value() && !BALLAST_MUTANT(kForgetRatios);
    if (ratios) fsm.ratios = open->ratios->ratios;
    // The same vote must come out again: a peer may have it already.
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
  // Before any extent is loaded: Keep may overwrite images, which a wrong log must not do.
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

// Starts extents in order, and none after a failure: the first extent to fail and its error are the
// same with any number of lanes.
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
    out_.image_versions.push_back(one.version);  // In the order of Place, as EndRecovery needs it.
    if (one.init_missing) out_.fsm.init_missing.push_back(owned[i]);
    if (one.ahead) out_.ahead.push_back(owned[i]);
    out_.replayed_rounds = std::max(out_.replayed_rounds, one.replayed_rounds);
    out_.image_bytes += one.image_bytes;
    out_.log_bytes += one.log_bytes;
  }
  return absl::OkStatus();
}

// Whether no vote has covered the extent yet: in a new job, and in newly added groups.
bool Recovery::Unvoted(uint32_t extent) const {
  if (out_.fsm.prepared.has_value()) return false;
  if (!out_.last_decision.has_value()) return true;
  const uint32_t first_run = layout_.extents()[extent].first_run;
  return out_.fsm.round == plan_.grown_round &&
         layout_.runs()[first_run].tensor >= plan_.tensors_before;
}

// Loads the newest whole image that the log can bring to the open round.
absl::Status Recovery::Load(uint32_t extent, Lane* lane, Loaded* loaded) {
  const Restored& fsm = out_.fsm;
  const std::vector<uint64_t> versions = storage_->images()->Versions(extent);
  // Before the first vote an image may be half written, or may have been read from a cache after a
  // failed flush. The trainer still has the right weights and sends them again.
  if (Unvoted(extent)) {
    storage_->images()->Forget(extent);
    loaded->init_missing = true;
    return absl::OkStatus();
  }
  BALLAST_RETURN_IF_ERROR(CheckNotBeyond(extent, versions.empty() ? 0 : versions.front()));
  absl::Status why;
  for (const uint64_t version : versions) {
    const absl::Status status = LoadVersion(extent, version, lane, loaded);
    // Only damage justifies an older image. After an I/O error the newest one may still be whole.
    if (!absl::IsDataLoss(status)) return status;
    BALLAST_LOG(ERROR, LogField("run", plan_.spec.name)) << status.message();
    if (why.ok()) why = status;  // The newest image's damage is the one to repair.
  }
  return StateLost(absl::StrCat("extent ", extent, " cannot be brought to round ", fsm.round, ": ",
                                why.ok() ? "it has no image" : why.message()));
}

// Version t + 1 is written only after the vote of round t was flushed, so an image beyond the log's
// end proves that the log lost a flushed vote. Falling back to an older image would hide that.
absl::Status Recovery::CheckNotBeyond(uint32_t extent, uint64_t version) const {
  const Restored& fsm = out_.fsm;
  const bool ahead = version == fsm.round + 1 && fsm.prepared.has_value();
  if (version <= fsm.round || ahead) return absl::OkStatus();
  return StateLost(absl::StrCat("the image of extent ", extent, " holds version ", version,
                                ", but the log ends before the vote of round ", fsm.round));
}

// A new epoch's record reaches the metadata store after the decision of the last round before it,
// and before anything of the new epoch is logged.
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

// The job's own log has the policy its specification asks for; another version means other files.
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
  // Read in place: after a checksum error the next image overwrites these bytes, or the job is
  // refused.
  float* const state = lane->store.State(extent);
  BALLAST_RETURN_IF_ERROR(storage_->images()->Read(extent, version, state));
  const uint32_t arrays = StateArrayCount(plan_.spec);
  tier::SpreadLastTile(layout_.extents()[extent].elements, layout_.tile_elements(),
                       BALLAST_MUTANT(kForgetLastArray) ? std::min(arrays, 3u) : arrays, state);
  loaded->image_bytes += ImageFile::PayloadBytes(ShapeOf(plan_.spec, layout_, extent));
  loaded->version = version;
  loaded->replay = {};  // Progress over a damaged newer image does not count.
  // The open round's step wrote it before its decision was flushed. The logged vote gives the same
  // decision again, so Sweep only has to leave the extent out.
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
  const absl::StatusOr<uint64_t> kept =
      state_->placement->Keep({.lane = lane.number,
                               .extent = extent,
                               .elements = layout_.extents()[extent].elements,
                               .image = loaded->version,
                               .version = round,
                               .stepped = loaded->replay.stepped},
                              storage_->images());
  if (!kept.ok()) {
    // Not DATA_LOSS, which makes Load try an older image: the state is right, the disk is not.
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
  if (ReasonOf(status) != Reason::kUnspecified) return status;  // Names job and remedy already.
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
  // The log reserves its files once, so these bounds must hold for every round of the job.
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
    // A variable world may reach slots_max later, without new files.
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
