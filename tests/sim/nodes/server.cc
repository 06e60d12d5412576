#include "tests/sim/nodes/server.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "server/durability/log/log_format.h"
#include "server/durability/records/bytes.h"
#include "tests/sim/nodes/home.h"
#include "tests/sim/nodes/manifest.h"
#include "tests/sim/nodes/port.h"
#include "tests/sim/nodes/snapshots.h"

namespace ballast::sim {
namespace {

constexpr char kDirectory[] = "/jobs/1";
constexpr char kManifest[] = "/jobs/1/manifest";

// The sink of a stray process: it ignores all messages.
class IgnoringSink final : public server::SlotSink {
 public:
  void OnAck(const server::Ack&) override {}
  void OnResult(const RoundResult&) override {}
  void OnExtent(const server::OutPiece&) override {}
  void OnDone(const server::RoundDone&) override {}
  void OnRefused(const server::FrameRefused&) override {}
  void OnState(const server::StateInfo&) override {}
  void OnTrainer(const server::TrainerNews&) override {}
  void OnError(const absl::Status&) override {}
};

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
  log.secret = Mix(log.server);
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
      log_options_(SmallLogGeometry(options_, context.swarm->shape.segment_bytes_min)),
      flushed_(context.world, &disk_, &options_, absl::StrCat(kDirectory, "/slots")) {
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
  if (storage.ok()) flushed_.Watch((*storage)->images());
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

void SimServer::NewProcess() {
  World* const world = context_.world;
  process_ = std::make_shared<SimProcess>(
      context_, SimProcess::Deps{.index = index_,
                                 .disk = &disk_,
                                 .damaged = damaged_,
                                 .after_task = [this] { flushed_.Check(); },
                                 .storage_failed =
                                     [this, errors = disk_.errors()](const absl::Status& status) {
                                       OnStorageFailed(status, errors);
                                     }});
  holds_ = false;
  world->SetLogFull(node(), false);
  disk_.SetBesideSync([this, world](bool log) {
    if (!World::may_give_way()) return;
    const Pace& pace = context_.swarm->pace;
    world->GiveWay(world->random().Below((log ? pace.log_sync : pace.image_sync) + 1), node());
  });
}

void SimServer::OnStorageFailed(const absl::Status& status, uint64_t errors) {
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
}

void SimServer::StartAgainLater() {
  const Tick delay = context_.world->random().Between(kMillisecond, 200 * kMillisecond);
  context_.world->After(delay, kNobody, EventKind::kStart, [this] { Start(); });
}

absl::StatusOr<server::JobPlan> SimServer::ReadManifest() {
  absl::StatusOr<server::JobPlan> plan = LoadManifest(&disk_, kManifest, *context_.plan);
  if (plan.ok() && context_.mutant != Mutant::kManifestAsRead) {
    const absl::Status saved = SaveManifest(&disk_, kManifest, *plan);
    if (!saved.ok()) plan = saved;
  }
  return plan;
}

absl::Status SimServer::OpenProcess(const absl::StatusOr<server::JobPlan>& plan,
                                    SimProcess* process) {
  BALLAST_RETURN_IF_ERROR(plan.status());
  log_options_.epoch = plan->epoch.epoch;
  log_options_.start_round = options_.start_round = plan->epoch.start_round;
  BALLAST_ASSIGN_OR_RETURN(std::unique_ptr<server::JobStorage> storage, TakeStorage());
  if (!process->alive()) return absl::CancelledError("the process has ended");
  return process->Open(*plan, std::move(storage));
}

void SimServer::Boot() {
  const uint64_t errors = disk_errors_ = disk_.errors();
  const bool restarted = fresh_ == nullptr;
  SimProcess* const process = process_.get();
  const absl::StatusOr<server::JobPlan> plan = ReadManifest();
  const absl::Status opened = OpenProcess(plan, process);
  if (!process->alive()) return;  // It ended inside the disk.
  fresh_ = nullptr;
  opened.ok() ? Serve(*plan, restarted) : CannotServe(opened, errors);
}

void SimServer::Serve(const server::JobPlan& plan, bool restarted) {
  started_ = true;
  server::RoundEngine* const engine = process_->engine();
  port_ = std::make_unique<SimPort>(context_, this, index_);
  if (context_.world->tracing()) {
    const server::RoundFsm& fsm = process_->fsm();
    context_.world->Trace(
        node(), absl::StrCat("serves at round ", fsm.round(), ", ", PhaseName(fsm.phase())));
  }
  if (index_ == 0) {
    home_ = std::make_unique<SimHome>(context_, this, plan);
    engine->trainers().OnSeatFree(
        process_->InLife([this](uint32_t slot, uint64_t incarnation, bool left) {
          home_->OnSeatFree(slot, incarnation, left);
        }));
    snapshots_ = std::make_unique<SimSnapshots>(context_, this);
  }
  engine->OnEnd(process_->InLife([this](const absl::Status& why, uint64_t) {
    flushed_.Watch(nullptr);
    process_->OnEnded(why);
    if (home_ != nullptr) home_->OnEnded(why);
  }));
  process_->StartPeers();
  engine->Start(restarted);
  engine->trainers().ExpectSlots();
  if (home_ != nullptr) home_->Start();
  if (snapshots_ != nullptr) snapshots_->Start();
}

void SimServer::CannotServe(const absl::Status& why, uint64_t errors) {
  if (context_.world->tracing()) {
    context_.world->Trace(node(), absl::StrCat("cannot start: ", why.ToString()));
  }
  End(/*power=*/false);
  if (disk_.errors() != errors) {  // The disk failed; it may do better next time.
    StartAgainLater();
  } else if (damaged_) {
    refusal_ = why;
  } else {
    context_.world->Red(absl::StrCat("server ", id_, " cannot start: ", why.ToString()));
  }
}

void SimServer::End(bool power) {
  if (!running_) return;
  if (context_.world->tracing()) {
    context_.world->Trace(node(), power ? "loses power" : "process ends");
  }
  running_ = false;
  started_ = false;
  flushed_.Watch(nullptr);
  context_.world->EndLife(node());
  context_.network->EndProcess(index_, /*announced=*/!power);
  if (context_.shelf->being_taken()) context_.world->Met(Cover::kEndInSnapshot);
  if (snapshots_ != nullptr) graveyard_.push_back(std::move(snapshots_));
  if (home_ != nullptr) graveyard_.push_back(std::move(home_));
  graveyard_.push_back(std::move(port_));
  if (process_ != nullptr) graveyard_.push_back(std::move(process_));
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

// --- Streams and calls --------------------------------------------------------------------------

void SimServer::OnOpen(const StreamPtr& stream) { port_->Open(stream); }

void SimServer::OnCall(const char* method, const Payload& request, UnaryDone answer) {
  if (!Serves()) return answer(absl::UnavailableError("the server starts"));
  port_->Call(method, request, std::move(answer));
}

void SimServer::StrayHello(const server::SlotHello& hello) {
  if (!Serves()) return;
  process_->engine()->trainers().AttachSlot(
      hello, std::make_shared<IgnoringSink>(),
      process_->InLife([this](const absl::StatusOr<server::SlotWelcome>& welcome) {
        if (welcome.ok()) context_.world->Red("a process that is no member gets a seat");
      }));
}

// --- Epochs -------------------------------------------------------------------------------------

// As a process saves it: one that has ended writes nothing.
absl::Status SimServer::SaveRecord(const server::JobPlan& plan) {
  if (!running_) return absl::CancelledError("the process has ended");
  return SaveManifest(&disk_, kManifest, plan);
}

void SimServer::OnSeal(uint32_t epoch,
                       std::function<void(absl::StatusOr<server::SealAnswer>)> done) {
  if (!Serves()) return;
  process_->engine()->changes().Seal(
      epoch, [this](const server::JobPlan& plan) { return SaveRecord(plan); },
      process_->InLife(std::move(done)));
}

void SimServer::OnAdopt(const server::JobPlan& plan, std::function<void(absl::Status)> done) {
  if (!Serves()) return;
  process_->engine()->changes().Adopt(
      {plan, context_.swarm->shape.window_extents[index_],
       [this, plan, process = process_.get()] {
         const bool forgets = context_.mutant == Mutant::kRecordNotSaved && index_ == 0;
         const absl::Status saved = forgets ? absl::OkStatus() : SaveRecord(plan);
         if (saved.ok() && process->alive()) OnRecordSaved(plan);
         return saved;
       },
       process_->InLife(std::move(done))});
}

void SimServer::OnRecordSaved(const server::JobPlan& plan) {
  const server::EpochRecord& epoch = plan.epoch;
  const server::EpochRecord& before = process_->fsm().plan().epoch;
  if (index_ == 0) context_.oracle->OnEpoch(epoch);
  context_.oracle->OnAdopted(id_, epoch, damaged_);
  context_.world->Met(epoch.world() == before.world() ? Cover::kReplaced : Cover::kOtherWorld);
  const server::Member& lead = epoch.members.front();
  const bool reduced = plan.spec.gradients == Gradients::kReduced;
  if (reduced && !before.Holds(lead.slot, lead.incarnation)) {
    context_.world->Met(Cover::kNewContributor);
  }
  if (plan.spec.gradients == Gradients::kScattered && epoch.world() != before.world()) {
    context_.world->Met(Cover::kDealtAnew);
  }
  if (epoch.init_again) context_.world->Met(Cover::kInitDropped);
  if (!context_.world->tracing()) return;
  context_.world->Trace(node(),
                        absl::StrCat("epoch ", epoch.epoch, " from round ", epoch.start_round, ", ",
                                     epoch.world(), " of ", before.world(), " trainers"));
}

}  // namespace ballast::sim
