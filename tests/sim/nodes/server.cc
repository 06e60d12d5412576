#include "tests/sim/nodes/server.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/text/names.h"
#include "tests/sim/nodes/port.h"
#include "tests/sim/nodes/snapshots.h"

namespace ballast::sim {
namespace {

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

}  // namespace

SimServer::SimServer(const Context& context, uint32_t index)
    : context_(context),
      index_(index),
      id_(context.plan->servers[index]),
      disk_(context.mutant),
      shelf_disk_(Mutant::kNone, context.shelf->disk()),
      options_(SimSizes(context, *context.plan, id_)),
      flushed_(context.world, &disk_, &options_) {}

SimServer::~SimServer() = default;

// --- Disk ---------------------------------------------------------------------------------------

void SimServer::FillDisk() {
  if (!context_.swarm->faults.disk_full) return;
  const uint64_t needed = server::JobStorage::DiskBytes(options_);
  disk_.raw()->SetCapacity(context_.world->random().Below(needed));
  // Before the trainers have asked for the third time.
  context_.world->After(150 * kMillisecond, kNobody, EventKind::kFault,
                        [this] { disk_.raw()->SetCapacity(uint64_t{1} << 30); });
}

void SimServer::Rot(uint32_t bits) {
  set_damaged();
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
      context_,
      SimProcess::Deps{
          .index = index_,
          .disk = &disk_,
          .shelf = &shelf_disk_,
          .damaged = damaged_,
          .after_task = [this] { CheckFlushed(); },
          .storage_failed = [this, errors = disk_.errors()](
                                const absl::Status& status) { OnStorageFailed(status, errors); },
          .saved = [this](const server::JobPlan& plan) { OnSaved(plan); },
          .opened =
              [this](server::JobStorage* storage) {
                flushed_.Watch(storage->images(),
                               absl::StrCat(kJobsRoot, "/", JobIdText(*context_.job), "/slots"));
              }});
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

void SimServer::Boot() {
  const uint64_t before = errors_before_ = errors();
  SimProcess* const process = process_.get();
  absl::Status opened = process->Recover();
  if (!process->alive()) return;  // It ended inside the disk, or for an error of it.
  const bool lacks = opened.ok() && context_.oracle->begun() && process->engine() == nullptr;
  if (lacks) opened = process->WhyNot();
  opened.ok() ? Serve() : CannotServe(opened, before);
}

void SimServer::Serve() {
  started_ = true;
  port_ = std::make_unique<SimPort>(context_, process_.get(), index_);
  if (context_.world->tracing()) {
    const bool runs = process_->engine() != nullptr;
    context_.world->Trace(node(), runs ? absl::StrCat("serves at round ", process_->fsm().round(),
                                                      ", ", PhaseName(process_->fsm().phase()))
                                       : "serves");
  }
  process_->Start();
  if (!running_ || index_ != 0) return;
  snapshots_ = std::make_unique<SimSnapshots>(context_, process_.get(), &shelf_disk_);
}

void SimServer::CheckFlushed() {
  SimProcess* const runs = process();
  if (runs != nullptr && !runs->ended()) flushed_.Check();
}

void SimServer::CannotServe(const absl::Status& why, uint64_t before) {
  if (context_.world->tracing()) {
    context_.world->Trace(node(), absl::StrCat("cannot start: ", why.ToString()));
  }
  End(/*power=*/false);
  if (errors() != before) {  // A disk failed; it may do better next time.
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
  flushed_.Watch(nullptr, "");
  context_.world->EndLife(node());
  context_.network->EndProcess(index_, /*announced=*/!power);
  if (context_.rests()) context_.world->Met(Cover::kEndAtRest);
  if (context_.shelf->being_taken()) context_.world->Met(Cover::kEndInSnapshot);
  if (snapshots_ != nullptr) graveyard_.push_back(std::move(snapshots_));
  graveyard_.push_back(std::move(port_));
  if (process_ != nullptr) graveyard_.push_back(std::move(process_));
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
  if (process() == nullptr) return;
  process_->engine()->trainers().AttachSlot(
      hello, std::make_shared<IgnoringSink>(),
      process_->InLife([this](const absl::StatusOr<server::SlotWelcome>& welcome) {
        if (welcome.ok()) context_.world->Red("a process that is no member gets a seat");
      }));
}

// --- Epochs -------------------------------------------------------------------------------------

void SimServer::OnSaved(const server::JobPlan& plan) {
  if (!started_) return;  // It has read this record.
  if (index_ == 0 && !plan.making && !context_.oracle->begun()) context_.oracle->Begin();
  disk_.Made();
  if (process() == nullptr) return;
  const server::EpochRecord before = process_->fsm().plan().epoch;
  if (plan.epoch.epoch > before.epoch) OnAdopted(plan, before);
}

void SimServer::OnAdopted(const server::JobPlan& plan, const server::EpochRecord& before) {
  const server::EpochRecord& epoch = plan.epoch;
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
