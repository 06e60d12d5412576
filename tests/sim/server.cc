#include "tests/sim/server.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "server/durability/image_format.h"
#include "server/durability/log_format.h"
#include "tests/sim/home.h"
#include "tests/sim/manifest.h"
#include "tests/sim/session.h"
#include "tests/sim/snapshots.h"

namespace ballast::sim {
namespace {

constexpr char kDirectory[] = "/jobs/1";
constexpr char kManifest[] = "/jobs/1/manifest";
constexpr Tick kVoteRetry = 50 * kMillisecond;

// The log's geometry as JobStorage::LogGeometry has it, for jobs of a few kilobytes: its least
// segment would take most of a run's time to write.
server::LogOptions SmallLogGeometry(const server::StorageOptions& options,
                                    uint64_t segment_bytes_min) {
  // A page is enough for the PREPARE or the decision of so small a job.
  const uint64_t small_record = server::GradientLog::RecordBytes(kPageBytes);
  uint64_t round_bytes = 2 * small_record;
  uint64_t largest = small_record;
  for (const uint64_t bytes : options.gradient_bytes) {
    round_bytes += server::GradientLog::RecordBytes(bytes);
    largest = std::max(largest, server::GradientLog::RecordBytes(bytes));
  }
  server::LogOptions log;
  log.job = options.images.job;
  log.server = options.images.server;
  log.flush = options.images.flush;
  log.direct = options.images.direct;
  log.open_threads = 1;
  log.epoch = options.epoch;
  log.start_round = options.start_round;
  const uint64_t wanted = std::clamp(round_bytes, segment_bytes_min, 4 * segment_bytes_min);
  log.segment_bytes = server::PaddedBytes(std::max(wanted, 2 * largest) + kPageBytes);
  const uint64_t usable = log.segment_bytes - kPageBytes - largest;
  const uint64_t rounds = options.checkpoint_rounds + 2;
  log.segments = static_cast<uint32_t>((rounds * round_bytes + usable - 1) / usable) + 2;
  return log;
}

}  // namespace

SimServer::SimServer(const Context& context, uint32_t index)
    : context_(context),
      index_(index),
      id_(context.plan->servers[index]),
      disk_(context.mutant),
      shelf_disk_(Mutant::kNone, context.shelf->disk()),
      options_(server::StorageOptionsOf(*context.plan, *context.layout, id_,
                                        context.swarm->shape.checkpoint_rounds)),
      log_options_(SmallLogGeometry(options_, context.swarm->shape.segment_bytes_min)) {
  options_.images.open_threads = 1;
}

SimServer::~SimServer() = default;

// --- Disk ---------------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<server::JobStorage>> SimServer::CreateStorage() {
  BALLAST_RETURN_IF_ERROR(disk_.MakeDirectory(kDirectory));
  BALLAST_ASSIGN_OR_RETURN(auto log, server::GradientLog::Create(&disk_, kDirectory, log_options_));
  BALLAST_ASSIGN_OR_RETURN(auto images,
                           server::ImageFile::Create(&disk_, absl::StrCat(kDirectory, "/slots"),
                                                     options_.images, options_.shapes));
  for (const char* parent : {"/", "/jobs"}) {
    BALLAST_RETURN_IF_ERROR(disk_.SyncDirectory(parent));
  }
  BALLAST_RETURN_IF_ERROR(SaveManifest(&disk_, kManifest, *context_.plan));
  return std::make_unique<server::JobStorage>(std::move(log), std::move(images), options_.shapes,
                                              options_.start_round);
}

absl::StatusOr<std::unique_ptr<server::JobStorage>> SimServer::OpenStorage() {
  BALLAST_ASSIGN_OR_RETURN(auto log, server::GradientLog::Open(&disk_, kDirectory, log_options_));
  BALLAST_ASSIGN_OR_RETURN(auto images,
                           server::ImageFile::Open(&disk_, absl::StrCat(kDirectory, "/slots"),
                                                   options_.images, options_.shapes));
  return std::make_unique<server::JobStorage>(std::move(log), std::move(images), options_.shapes,
                                              options_.start_round);
}

absl::StatusOr<std::unique_ptr<server::JobStorage>> SimServer::TakeStorage() {
  absl::StatusOr<std::unique_ptr<server::JobStorage>> storage =
      fresh_ != nullptr ? std::move(fresh_) : OpenStorage();
  images_ = storage.ok() ? (*storage)->images() : nullptr;
  return storage;
}

absl::Status SimServer::CreateJob() {
  if (context_.swarm->faults.disk_full) {
    const uint64_t needed = server::GradientLog::DiskBytes(log_options_) +
                            server::ImageFile::DiskBytes(options_.shapes);
    disk_.raw()->SetCapacity(context_.world->random().Below(needed));
    context_.world->Met(Cover::kFullDisk);
    const absl::Status refused = CreateStorage().status();
    if (!absl::IsResourceExhausted(refused)) {
      context_.world->Red(absl::StrCat("a full disk gives ", refused.ToString()));
    }
    (void)disk_.RemoveAll(kDirectory);  // As JobStore does.
    disk_.raw()->SetCapacity(uint64_t{1} << 30);
  }
  BALLAST_ASSIGN_OR_RETURN(fresh_, CreateStorage());
  disk_.Made();
  return absl::OkStatus();
}

void SimServer::Rot(uint32_t bits) {
  damaged_ = true;
  if (context_.world->random().OneIn(8)) {
    context_.world->Met(Cover::kFileVanished);
    const std::string path = "/" + context_.world->random().Pick(disk_.raw()->Paths());
    (void)disk_.raw()->Remove(path);
    (void)disk_.raw()->SyncDirectory(path.substr(0, path.rfind('/')));
    return;
  }
  context_.world->Met(Cover::kBitsRotted);
  for (; bits > 0; --bits) {
    const std::vector<std::string> paths = disk_.raw()->Paths();
    const std::string path = "/" + context_.world->random().Pick(paths);
    auto file = disk_.raw()->Open(path, {.mode = OpenMode::kRead});
    if (!file.ok()) continue;
    const uint64_t size = *(*file)->Size();
    if (size == 0) continue;
    (void)disk_.raw()->FlipBit(path, context_.world->random().Below(size),
                               static_cast<int>(context_.world->random().Below(8)));
  }
}

// --- Processes ----------------------------------------------------------------------------------

void SimServer::Start() {
  if (running_ || !refusal_.ok()) return;
  running_ = true;
  if (context_.world->tracing()) context_.world->Trace(node(), "starts");
  const Tick full = context_.swarm->pace.start;
  context_.world->After(context_.world->random().Between(full / 4, full), node(), EventKind::kStart,
                        [this] {
                          NewProcess();
                          Boot();
                        });
}

SimEngineDeps SimServer::EngineDeps() {
  SimEngineDeps deps{.world = context_.world,
                     .swarm = context_.swarm,
                     .oracle = context_.oracle,
                     .disk = &disk_,
                     .threads = threads_.get(),
                     .node = node(),
                     .server_id = id_,
                     .window_extents = context_.swarm->shape.window_extents[index_],
                     .mutant = context_.mutant,
                     .damaged = damaged_};
  deps.send_vote = [this](uint32_t epoch, uint64_t round, uint32_t to_server, const Vote& vote) {
    auto under_way = std::make_shared<VoteUnderWay>(VoteUnderWay{epoch, round, vote});
    OfferVote(to_server, std::move(under_way));
  };
  deps.storage_failed = [this, errors = disk_.errors()](const absl::Status& status) {
    if (disk_.errors() == errors && !damaged_) {
      context_.world->Red(
          absl::StrCat("server ", id_, " ends for a disk that works: ", status.ToString()));
    }
    if (context_.world->tracing()) {
      context_.world->Trace(node(), absl::StrCat("storage failed: ", status.ToString()));
    }
    context_.world->Met(Cover::kStorageFailed);
    End(/*power=*/false);
    StartAgainLater();
  };
  return deps;
}

void SimServer::StartAgainLater() {
  const Tick delay = context_.world->random().Between(kMillisecond, 200 * kMillisecond);
  context_.world->After(delay, kNobody, EventKind::kStart, [this] { Start(); });
}

void SimServer::Boot() {
  const uint64_t life = context_.world->Life(node());
  const uint64_t errors = disk_errors_ = disk_.errors();
  const bool restarted = fresh_ == nullptr;
  absl::StatusOr<server::JobPlan> plan = LoadManifest(&disk_, kManifest, *context_.plan);
  if (plan.ok() && context_.mutant != Mutant::kManifestAsRead) {
    const absl::Status saved = SaveManifest(&disk_, kManifest, *plan);
    if (!saved.ok()) plan = saved;
  }
  absl::StatusOr<std::unique_ptr<server::JobStorage>> storage = absl::UnknownError("not opened");
  if (!plan.ok()) {
    storage = plan.status();
  } else {
    log_options_.epoch = plan->epoch.epoch;
    log_options_.start_round = options_.start_round = plan->epoch.start_round;
    storage = TakeStorage();
  }
  fresh_ = nullptr;
  absl::StatusOr<std::unique_ptr<SimEngine>> engine =
      storage.ok() ? SimEngine::Make(*plan, EngineDeps(), *std::move(storage))
                   : absl::StatusOr<std::unique_ptr<SimEngine>>(storage.status());
  if (context_.world->Life(node()) != life) return;  // It ended inside the disk.
  if (engine.ok()) {
    engine_ = *std::move(engine);
    started_ = true;
    if (context_.world->tracing()) {
      context_.world->Trace(node(), absl::StrCat("serves at round ", engine_->fsm().round(), ", ",
                                                 PhaseName(engine_->fsm().phase())));
    }
    if (index_ == 0) {
      home_ = std::make_unique<SimHome>(context_, this, *plan);
      engine_->OnSeatFree([this](uint32_t slot, uint64_t incarnation, bool left) {
        home_->OnSeatFree(slot, incarnation, left);
      });
      snapshots_ = std::make_unique<SimSnapshots>(context_, this);
    }
    engine_->Start(restarted);
    if (context_.world->Life(node()) == life && home_ != nullptr) home_->Start();
    if (context_.world->Life(node()) == life && snapshots_ != nullptr) snapshots_->Start();
    return;
  }
  if (context_.world->tracing()) {
    context_.world->Trace(node(), absl::StrCat("cannot start: ", engine.status().ToString()));
  }
  End(/*power=*/false);
  if (disk_.errors() != errors) {  // The disk failed; it may do better next time.
    StartAgainLater();
  } else if (damaged_) {
    refusal_ = engine.status();
  } else {
    context_.world->Red(
        absl::StrCat("server ", id_, " cannot start: ", engine.status().ToString()));
  }
}

void SimServer::NewProcess() {
  World* const world = context_.world;
  if (threads_ != nullptr) graveyard_.push_back(std::move(threads_));
  threads_ =
      std::make_shared<SimThreads>(world, context_.swarm, node(), [this] { CheckFlushed(); });
  checked_.clear();
  disk_.SetBesideSync([this, world](bool log) {
    if (!world->may_give_way()) return;
    const Pace& pace = context_.swarm->pace;
    world->GiveWay(world->random().Below((log ? pace.log_sync : pace.image_sync) + 1), node());
  });
}

// What counts as flushed is on the medium.
void SimServer::CheckFlushed() {
  if (images_ == nullptr || !options_.images.flush) return;
  uint64_t offset = kPageBytes;
  for (const server::ImageShape& shape : options_.shapes) {
    const uint64_t header_bytes = server::ImageHeaderBytes(shape);
    const uint64_t image_bytes = header_bytes + server::ImageFile::BufferBytes(shape);
    const uint64_t version = images_->Flushed(shape.extent);
    if (std::exchange(checked_[shape.extent], version) != version) {
      CheckFlushed(shape, version, {offset, offset + image_bytes});
    }
    offset += 2 * image_bytes;
  }
}

void SimServer::CheckFlushed(const server::ImageShape& shape, uint64_t version,
                             const std::array<uint64_t, 2>& places) {
  const auto file =
      disk_.raw()->Open(absl::StrCat(kDirectory, "/slots"), {.mode = OpenMode::kRead});
  std::string page(server::ImageHeaderBytes(shape), '\0');
  for (const uint64_t place : places) {
    if (!file.ok() || !(*file)->ReadAt(place, page.size(), page.data()).ok()) return;
    const auto header = server::DecodeImageHeader(shape, page.data());
    if (!header.ok() || header->version != version) continue;
    if (disk_.ImageWrittenAt(place) <= disk_.images_synced()) continue;
    context_.world->Red(absl::StrCat("version ", version, " of extent ", shape.extent,
                                     " counts as flushed, and no flush has covered it"));
  }
}

void SimServer::End(bool power) {
  if (!running_) return;
  if (context_.world->tracing()) {
    context_.world->Trace(node(), power ? "loses power" : "process ends");
  }
  running_ = false;
  started_ = false;
  images_ = nullptr;
  context_.world->EndLife(node());
  context_.network->EndProcess(index_, /*announced=*/!power);
  if (context_.shelf->being_taken()) context_.world->Met(Cover::kEndInSnapshot);
  if (snapshots_ != nullptr) graveyard_.push_back(std::move(snapshots_));
  if (home_ != nullptr) graveyard_.push_back(std::move(home_));
  if (engine_ != nullptr) graveyard_.push_back(std::move(engine_));
  for (auto& [stream, session] : sessions_) graveyard_.push_back(std::move(session));
  sessions_.clear();
  newest_votes_.clear();
  fresh_ = nullptr;  // Its files were open in this process.
  disk_.Detach();
  shelf_disk_.Detach();
  if (power) LosePower();
}

void SimServer::LosePower() {
  context_.world->clock(node())->Reboot();
  if (disk_.unsynced_bytes()) context_.world->Met(Cover::kUnsyncedBytesAtPowerLoss);
  if (disk_.unsynced_names()) context_.world->Met(Cover::kUnsyncedNamesAtPowerLoss);
  const CrashMood mood = context_.swarm->faults.mood;
  Random* const random = &context_.world->random();
  disk_.PowerOff([mood, random]() -> uint64_t {
    if (mood == CrashMood::kMixed) return random->Next();
    return mood == CrashMood::kKeepsAll ? 0 : 1;
  });
  // The machine with the snapshots hangs on the same mains, sometimes.
  if (context_.swarm->snapshots.most > 0 && random->OneIn(2)) context_.shelf->LosePower();
}

// --- Trainers -----------------------------------------------------------------------------------

void SimServer::OnUp(const StreamPtr& stream, UpMessage message) {
  std::shared_ptr<Session>& session = sessions_[stream.get()];
  if (session == nullptr) {
    session = std::make_shared<Session>(context_, engine_.get(), stream);
    session->WatchSilence();
  }
  const std::shared_ptr<Session> keep = session;
  keep->OnUp(std::move(message));
}

void SimServer::OnUpClosed(const StreamPtr& stream) {
  const auto session = sessions_.find(stream.get());
  if (session == sessions_.end()) return;
  const std::shared_ptr<Session> keep = std::move(session->second);
  sessions_.erase(session);
  keep->OnClosed();
}

void SimServer::StrayFrame(const FrameHeader& frame, Payload payload) {
  if (Serves()) engine_->StrayFrame(frame, std::move(payload));
}

void SimServer::StrayHello(const server::SlotHello& hello) {
  if (!Serves()) return;
  engine_->AttachSlot(hello, nullptr, [this](const absl::StatusOr<server::SlotWelcome>& welcome) {
    if (welcome.ok()) context_.world->Red("a process that is no member gets a seat");
  });
}

// --- Peers --------------------------------------------------------------------------------------

void SimServer::OfferVote(uint32_t to_server, std::shared_ptr<const VoteUnderWay> vote) {
  newest_votes_[to_server] = vote;
  CallVote(to_server, std::move(vote));
}

void SimServer::CallVote(uint32_t to_server, std::shared_ptr<const VoteUnderWay> vote) {
  const auto& servers = context_.plan->servers;
  const auto to = std::lower_bound(servers.begin(), servers.end(), to_server) - servers.begin();
  context_.network->CallVote(
      index_, static_cast<uint32_t>(to), vote->epoch, vote->round, vote->vote,
      [this, to_server, vote](const absl::StatusOr<std::optional<Vote>>& answer) {
        if (answer.ok()) {
          if (answer->has_value() && Serves()) {
            if (vote->round == engine_->fsm().round()) context_.world->Met(Cover::kVoteFromAnswer);
            (void)engine_->PeerVote(vote->epoch, vote->round, **answer);
          }
          return;
        }
        if (newest_votes_[to_server] != vote) return;  // A newer one took its place.
        if (ReasonOf(answer.status()) == Reason::kStateLost) {
          if (Serves()) engine_->VoteRefused(vote->round, answer.status());
          return;
        }
        context_.world->clock(node())->After(
            kVoteRetry, EventKind::kTimer, [this, to_server, vote] { CallVote(to_server, vote); });
      });
}

absl::StatusOr<std::optional<Vote>> SimServer::OnVoteCall(uint32_t epoch, uint64_t round,
                                                          const Vote& vote) {
  if (!Serves()) return absl::UnavailableError("the job is not known yet");
  return engine_->PeerVote(epoch, round, vote);
}

// --- Epochs -------------------------------------------------------------------------------------

void SimServer::OnSeal(uint32_t epoch,
                       std::function<void(absl::StatusOr<server::SealAnswer>)> done) {
  if (!Serves()) return;
  engine_->Seal(
      epoch, [this](const server::JobPlan& plan) { return SaveManifest(&disk_, kManifest, plan); },
      done);
}

void SimServer::OnAdopt(const server::JobPlan& plan, std::function<void(absl::Status)> done) {
  if (!Serves()) return;
  engine_->Adopt(
      plan,
      [this, plan] {
        if (context_.mutant == Mutant::kRecordNotSaved && index_ == 0) return absl::OkStatus();
        return SaveManifest(&disk_, kManifest, plan);
      },
      done);
}

void SimServer::OnAttach(const server::Member& who, bool resume,
                         std::function<void(absl::StatusOr<server::EpochRecord>)> done) {
  if (!Serves() || home_ == nullptr) return;
  if (engine_->ended()) return done(engine_->failure());
  home_->Attach(who, resume, std::move(done));
}

}  // namespace ballast::sim
