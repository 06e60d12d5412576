#include "tests/sim/faults.h"

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "common/bytes/crc32c.h"

namespace ballast::sim {

FaultPlan::FaultPlan(const Context& context, std::vector<SimServer*> servers,
                     const std::vector<std::unique_ptr<SimTrainer>>* trainers, Spawn spawn)
    : context_(context),
      servers_(std::move(servers)),
      trainers_(trainers),
      spawn_(std::move(spawn)),
      epochs_(servers_.size(), {context.plan->epoch.epoch, false}),
      left_(context.swarm->faults.budget) {
  const Faults& f = faults();
  if (f.partitions) timed_.push_back(&FaultPlan::CutLink);
  if (f.pause_servers) timed_.push_back(&FaultPlan::PauseServer);
  if (f.pause_trainers) timed_.push_back(&FaultPlan::PauseTrainer);
  if (f.write_errors) timed_.push_back(&FaultPlan::FailWrite);
  if (f.sync_errors) timed_.push_back(&FaultPlan::FailSync);
  if (f.lying_disk) timed_.push_back(&FaultPlan::LieOnce);
  if (f.zombies) timed_.push_back(&FaultPlan::SendZombie);
  if (f.kill_trainers) timed_.push_back(&FaultPlan::KillTrainer);
  if (f.hang_trainers) timed_.push_back(&FaultPlan::HangTrainer);
  if (f.come_and_go) timed_.push_back(&FaultPlan::ComeOrGo);
  if (f.clock_jumps) timed_.push_back(&FaultPlan::LeapClock);
}

void FaultPlan::Say(NodeId node, const char* what) {
  if (context_.world->tracing()) context_.world->Trace(node, what);
}

void FaultPlan::Begin() {
  calm_ = false;
  left_ = faults().budget;
  context_.network->Disturb();
  context_.world->SetGate([this](NodeId node) { return Gate(node); });
  if (faults().die_in_disk) {
    for (uint32_t s = 0; s < servers_.size(); ++s) ArmDisk(s);
  }
  if (context_.swarm->snapshots.die_at_shelf) {
    for (uint32_t s = 0; s < servers_.size(); ++s) ArmShelf(s);
  }
  if (!timed_.empty()) Next();
  if (faults().clock_jumps) SetWallClocks();
}

void FaultPlan::Calm() {
  calm_ = true;
  left_ = 0;
  if (!std::exchange(starts_missing_, true)) StartMissing();
  context_.network->Calm();
  context_.network->HealAll();
  for (NodeId node = 0; node < servers_.size() + trainers_->size(); ++node) {
    context_.world->Resume(node);
  }
  for (SimServer* const server : servers_) server->disk()->Disarm();
  for (SimServer* const server : servers_) server->shelf_disk()->Disarm();
}

void FaultPlan::StartMissing() {
  const server::EpochRecord newest = context_.oracle->newest();
  std::set<uint32_t> coming;  // slots; some are asked for by two processes
  for (const auto& trainer : *trainers_) {
    const bool asks = trainer->alive() && trainer->error().ok() && trainer->joining();
    if (asks) coming.insert(trainer->who().slot);
  }
  for (const server::Member& member : newest.members) {
    // Not a process that has lost the seat and does not know it yet.
    const bool there = std::any_of(trainers_->begin(), trainers_->end(), [&](const auto& t) {
      const bool its = t->who().incarnation == member.incarnation || t->joining();
      return t->alive() && t->error().ok() && t->who().slot == member.slot && its;
    });
    const bool wanted = !context_.plan->spec.variable_world ||
                        member.slot == newest.lead_trainer() ||
                        Active().size() + spawning_.size() + coming.size() < newest.min_world;
    if (!there && spawning_.count(member.slot) == 0 && wanted) Replace(member.slot, true);
  }
  context_.world->After(kSecond, kNobody, EventKind::kStart, [this] { StartMissing(); });
}

// --- Between two events -------------------------------------------------------------------------

bool FaultPlan::Gate(NodeId node) {
  if (calm_ || left_ == 0 || node >= servers_.size()) return true;
  const EndsInChange& change = faults().change;
  const bool any = change.end_soon || change.end_in_record || change.end_sealed;
  if (any && EpochChanged(node)) {
    if (change.end_soon) EndSoon();
    if (change.end_in_record) EndInRecord(node);
    if (change.end_sealed && node == 0) EndSealedHome();
  }
  const bool power = random().OneIn(faults().power_one_in);
  if (!power && !random().OneIn(faults().kill_one_in)) return true;
  const bool all = power && faults().whole_cluster;
  context_.world->Met(power ? Cover::kPowerLost : Cover::kServerKilled);
  for (uint32_t s = 0; s < servers_.size(); ++s) {
    if (all || s == node) Kill(s, power);
  }
  return false;
}

bool FaultPlan::EpochChanged(uint32_t server) {
  if (servers_[server]->process() == nullptr) return false;
  const server::RoundFsm& fsm = servers_[server]->process()->fsm();
  const std::pair<uint32_t, bool> now = {fsm.plan().epoch.epoch, fsm.sealed()};
  return std::exchange(epochs_[server], now) != now;
}

// The seal is some twenty changes of the disk before the end of the record. The next process reads
// data that the one before had not made durable; the machine ends later.
void FaultPlan::EndInRecord(uint32_t server) {
  if (!epochs_[server].second || random().OneIn(3)) return;
  const uint64_t operations = random().OneIn(2) ? 0 : random().Between(1, 20);
  DieInDisk(server, operations, random().OneIn(2), /*power=*/false, Cover::kEndInRecord);
  if (context_.plan->spec.durability != Durability::kPower) return;
  const Tick in = random().Spread(1, 1000) * kMillisecond;
  context_.world->After(in, kNobody, EventKind::kFault, [this, server] {
    if (!calm_ && left_ > 0) Kill(server, /*power=*/true);
  });
}

void FaultPlan::EndSealedHome() {
  if (!epochs_[0].second || random().OneIn(3)) return;
  const auto other = static_cast<uint32_t>(1 + random().Below(servers_.size() - 1));
  context_.network->Cut(0, other, context_.world->now() + kSecond);
  const Tick in = random().Spread(1, 30'000) * kMicrosecond;
  context_.world->After(in, kNobody, EventKind::kFault, [this] {
    if (calm_ || left_ == 0) return;
    context_.world->Met(Cover::kEndSealed);
    Kill(0, /*power=*/false);
    for (const auto& trainer : *trainers_) {
      if (trainer->alive() && trainer->joining()) trainer->Kill(/*announced=*/true);
    }
  });
}

void FaultPlan::EndSoon() {
  if (random().OneIn(3)) return;
  const auto which = static_cast<uint32_t>(random().Below(servers_.size()));
  const bool power = context_.plan->spec.durability == Durability::kPower && random().OneIn(2);
  const Tick in = random().Spread(1, 300'000) * kMicrosecond;
  context_.world->After(in, kNobody, EventKind::kFault, [this, which, power] {
    if (calm_ || left_ == 0) return;
    context_.world->Met(Cover::kEndInChange);
    Kill(which, power);
  });
}

void FaultPlan::Kill(uint32_t server, bool power) {
  if (left_ > 0) --left_;
  if (!servers_[server]->running()) return;
  servers_[server]->End(power);
  Restart(server);
}

void FaultPlan::Restart(uint32_t server) {
  if (faults().rot && left_ > 0 && random().OneIn(2)) {
    --left_;
    Say(server, "files rot");
    servers_[server]->Rot(static_cast<uint32_t>(random().Spread(1, 16)));
  }
  const Tick down = random().Spread(1, random().OneIn(8) ? 4000 : 200) * kMillisecond;
  context_.world->After(down, kNobody, EventKind::kStart, [this, server] {
    servers_[server]->Start();
    if (faults().die_in_disk && !calm_ && left_ > 0) ArmDisk(server);
    if (context_.swarm->snapshots.die_at_shelf && !calm_ && left_ > 0) ArmShelf(server);
  });
}

void FaultPlan::ArmDisk(uint32_t server) {
  const bool power = random().OneIn(2) && context_.plan->spec.durability == Durability::kPower;
  const bool happens = random().OneIn(2);
  const uint64_t operations = random().Spread(1, 400);
  DieInDisk(server, operations, happens, power, Cover::kDiedInDisk);
}

void FaultPlan::ArmShelf(uint32_t server) {
  const bool power = random().OneIn(2) && context_.plan->spec.durability == Durability::kPower;
  const bool happens = random().OneIn(2);
  DieIn(servers_[server]->shelf_disk(), server, random().Spread(1, 60), happens, power,
        Cover::kDiedAtShelf);
}

void FaultPlan::DieIn(SimDisk* disk, uint32_t server, uint64_t operations, bool happens, bool power,
                      Cover met) {
  const auto died = [this, server, power, met] {
    if (calm_) return;
    Say(server, "dies in the disk");
    context_.world->Met(met);
    // Not from inside the operation: the process ends at once, its power a moment later.
    servers_[server]->End(/*power=*/false);
    if (left_ > 0) --left_;
    context_.world->After(0, kNobody, EventKind::kFault, [this, server, power] {
      if (power) servers_[server]->LosePower();
      Restart(server);
    });
  };
  operations == 0 ? disk->DieAtRename(happens, died) : disk->DieAt(operations, happens, died);
}

// --- At a time ----------------------------------------------------------------------------------

void FaultPlan::Next() {
  const Tick gap = random().Between(1, 2 * faults().mean_gap);
  context_.world->After(gap, kNobody, EventKind::kFault, [this] {
    if (calm_ || left_ == 0) return;
    --left_;
    (this->*random().Pick(timed_))();
    Next();
  });
}

void FaultPlan::CutLink() {
  const auto nodes = servers_.size() + trainers_->size();
  const auto from = static_cast<NodeId>(random().Below(nodes));
  const auto to = static_cast<NodeId>(random().Below(nodes));
  const Tick until = context_.world->now() + random().Spread(1, 6000) * kMillisecond;
  Say(from, "cannot reach another node");
  context_.world->Met(Cover::kLinkCut);
  context_.network->Cut(from, to, until);
  if (random().OneIn(2)) context_.network->Cut(to, from, until);
}

void FaultPlan::Pause(NodeId node, Tick at_most) {
  Say(node, "is paused");
  context_.world->Pause(node);
  context_.network->Paused();
  context_.world->After(random().Spread(1, at_most / kMillisecond) * kMillisecond, kNobody,
                        EventKind::kFault, [this, node] { context_.world->Resume(node); });
}

void FaultPlan::LeapClock() {
  const auto nodes = servers_.size() + trainers_->size();
  const auto node = static_cast<NodeId>(random().Below(nodes));
  Say(node, "has a clock that leaps ahead");
  context_.world->Met(Cover::kClockLeapt);
  context_.world->clock(node)->Leap(random().Spread(1, 15'000) * kMillisecond);
}

// Goes on in the calm, too: to a cluster that does not look at wall clocks this is no fault.
void FaultPlan::SetWallClocks() {
  const auto node = static_cast<NodeId>(random().Below(servers_.size()));
  const auto by = static_cast<int64_t>(random().Spread(kSecond, 24 * kHour));
  Say(node, "gets another wall clock");
  context_.world->Met(Cover::kWallClockSet);
  context_.world->clock(node)->SetWall(random().OneIn(2) ? by : -by);
  context_.world->After(random().Between(kSecond / 10, 3 * kSecond), kNobody, EventKind::kFault,
                        [this] { SetWallClocks(); });
}

// --- Trainers -----------------------------------------------------------------------------------

std::vector<SimTrainer*> FaultPlan::Active() const {
  std::vector<SimTrainer*> active;
  for (const auto& trainer : *trainers_) {
    const bool member =
        context_.oracle->newest().Holds(trainer->who().slot, trainer->who().incarnation);
    if (member && trainer->alive() && !trainer->leaving() && trainer->error().ok()) {
      active.push_back(trainer.get());
    }
  }
  return active;
}

SimTrainer* FaultPlan::AnyActive() {
  const std::vector<SimTrainer*> active = Active();
  return active.empty() ? nullptr : random().Pick(active);
}

void FaultPlan::PauseTrainer() {
  SimTrainer* const trainer = AnyActive();
  if (trainer == nullptr) return;
  context_.world->Met(Cover::kTrainerPaused);
  Pause(trainer->node());
}

void FaultPlan::Replace(uint32_t slot, bool always) {
  if (!always && context_.plan->spec.variable_world && random().OneIn(2)) return;
  const Tick gap = random().Spread(1, random().OneIn(4) ? 6000 : 500) * kMillisecond;
  spawning_.insert(slot);
  context_.world->After(gap, kNobody, EventKind::kStart, [this, slot] {
    spawning_.erase(spawning_.find(slot));
    if (SimTrainer* const trainer = spawn_(slot)) trainer->Start();
  });
}

void FaultPlan::KillTrainer() {
  const std::vector<SimTrainer*> active = Active();
  if (active.empty()) return;
  // Not with disks that may forget a round: only trainers that have seen it would notice.
  const bool may_all = context_.plan->spec.variable_world && !context_.swarm->may_refuse();
  if (may_all && random().OneIn(3)) return KillWorld(active);
  if (context_.swarm->may_refuse() && active.size() == 1) return;
  SimTrainer* const trainer = random().Pick(active);
  context_.world->Met(Cover::kTrainerKilled);
  trainer->Kill(/*announced=*/!random().OneIn(3));
  Replace(trainer->who().slot, /*always=*/active.size() == 1);
}

// All trainers end, and the home: one trainer comes back at once, others perhaps never.
void FaultPlan::KillWorld(const std::vector<SimTrainer*>& trainers) {
  context_.world->Met(Cover::kTrainerKilled);
  for (SimTrainer* const trainer : trainers) trainer->Kill(/*announced=*/true);
  Replace(trainers.front()->who().slot, /*always=*/true);
  Kill(/*server=*/0, /*power=*/false);
}

// Whoever started it thinks it dead.
void FaultPlan::HangTrainer() {
  SimTrainer* const trainer = AnyActive();
  if (trainer == nullptr) return;
  context_.world->Met(Cover::kTrainerHung);
  Pause(trainer->node(), 12 * kSecond);
  if (random().OneIn(2)) Replace(trainer->who().slot, /*always=*/true);
}

void FaultPlan::ComeOrGo() {
  const std::vector<SimTrainer*> active = Active();
  const server::EpochRecord& newest = context_.oracle->newest();
  const auto slot = static_cast<uint32_t>(random().Below(context_.swarm->shape.seats));
  if (newest.Find(slot) == nullptr) {
    context_.world->Met(Cover::kTrainerJoined);
    Replace(slot, /*always=*/true);
    return;
  }
  // Slot 0 has to stay for the first round, and somebody always.
  SimTrainer* const trainer = active.empty() ? nullptr : random().Pick(active);
  if (active.size() <= newest.min_world) return;
  Say(trainer->node(), "will leave");
  trainer->LeaveSoon();
}

void FaultPlan::FailWrite() {
  const int error = random().OneIn(2) ? EIO : ENOSPC;
  AnyServer()->disk()->raw()->Fail(MemoryDisk::Operation::kWrite, random().Spread(1, 8), error);
}

void FaultPlan::FailSync() {
  AnyServer()->disk()->raw()->Fail(MemoryDisk::Operation::kSync, random().Spread(1, 4), EIO);
}

void FaultPlan::LieOnce() {
  SimServer* const server = AnyServer();
  server->set_damaged();
  if (random().OneIn(2)) {
    context_.world->Met(Cover::kWriteLost);
    server->disk()->raw()->LoseNextWrite();
  } else {
    context_.world->Met(Cover::kWriteMisdirected);
    server->disk()->raw()->MisdirectNextWrite(random().Below(64) * kPageBytes);
  }
}

// A process of another incarnation or epoch says what a member could say now.
void FaultPlan::SendZombie() {
  SimServer* const server = AnyServer();
  if (server->process() == nullptr) return;
  context_.world->Met(Cover::kStray);
  const server::RoundFsm& fsm = server->process()->fsm();
  const server::Member& member = random().Pick(fsm.plan().epoch.members);
  const uint32_t slot = member.slot;
  uint64_t incarnation = member.incarnation;
  uint32_t epoch = fsm.plan().epoch.epoch;
  if (random().OneIn(2)) {
    ++incarnation;
  } else {
    epoch += random().OneIn(2) ? 1 : -1;
  }
  if (fsm.owned().empty() || random().OneIn(4)) {
    server->StrayHello({slot, incarnation, epoch, fsm.round()});
    return;
  }
  const uint32_t extent = random().Pick(fsm.owned());
  const Layout& layout = *context_.layout;
  const bool init = random().OneIn(4);
  for (const ChunkRange& range :
       ChunkRanges(layout, extent, context_.swarm->shape.chunk_bytes, {})) {
    std::string bytes(range.length_bytes, '\x3d');
    FrameHeader frame{.job = *context_.job,
                      .epoch = epoch,
                      .slot = slot,
                      .round = fsm.round() - (random().OneIn(4) ? 1 : 0),
                      .extent = extent,
                      .incarnation = incarnation,
                      .offset_bytes = range.offset_bytes,
                      .length_bytes = range.length_bytes,
                      .dtype = layout.extents()[extent].dtype,
                      .kind = init ? FrameKind::kInit : FrameKind::kGradient};
    frame.crc32c = Crc32c(bytes.data(), bytes.size(), IdentityCrc(frame));
    server->process()->engine()->Frame(frame, Payload::FromString(bytes));
  }
}

}  // namespace ballast::sim
