#include "tests/sim/simulation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/reason.h"
#include "server/round/job_plan.h"

namespace ballast::sim {
namespace {

// Calls are lost for as long while the job is made.
constexpr Tick kLossyMakingMax = 20 * kSecond;
constexpr Tick kFaultPhaseMax = 5 * kSecond;
// For the last round after the last fault: several losses noticed by silence, one after the other,
// on the slowest clock.
constexpr Tick kQuietPhaseMax = 120 * kSecond;
constexpr uint64_t kEventsMax = 3'000'000;
constexpr uint32_t kLastSnapshotTries = 10;

server::JobPlan MakePlan(const Swarm& swarm) {
  server::JobPlan plan;
  plan.spec = swarm.shape.spec;
  for (uint32_t s = 0; s < swarm.shape.servers; ++s) plan.servers.push_back(2 * s + 1);
  const absl::StatusOr<Layout> layout = server::LayoutOfSpec(plan.spec);
  BALLAST_CHECK(layout.ok());
  for (const uint32_t index : PlanOwners(*layout, swarm.shape.servers)) {
    plan.owner.push_back(plan.servers[index]);
  }
  for (uint32_t slot = 0; slot < plan.spec.world; ++slot) {
    plan.epoch.members.push_back({slot, Mix(swarm.seed + slot)});
  }
  plan.epoch.contributors = server::ContributorsOf(plan.spec, plan.epoch.members);
  plan.epoch.min_world = swarm.shape.min_world;
  return plan;
}

// Servers' clocks, from half to double speed; trainers draw their own.
void SetServerClocks(const Swarm& swarm, World* world) {
  Random random(Mix(swarm.seed) ^ 0x0C10C5);
  for (NodeId node = 0; swarm.faults.drift && node < swarm.shape.servers; ++node) {
    world->clock(node)->SetRate(static_cast<double>(random.Between(50, 200)) / 100);
  }
}

}  // namespace

Simulation::Simulation(uint64_t seed, Mutant mutant, bool trace)
    : swarm_(DrawSwarm(seed)),
      plan_(MakePlan(swarm_)),
      layout_(*server::LayoutOfSpec(plan_.spec)),
      world_(Mix(seed), swarm_.shape.servers + swarm_.processes_max(), trace),
      trial_(mutant, &world_),
      network_(&world_, &swarm_),
      oracle_(&world_, &swarm_, &plan_, &layout_),
      shelf_(&world_, &swarm_, &oracle_, &plan_, &layout_),
      meetings_(&world_, &oracle_),
      context_{&world_,    &swarm_,  &network_, &oracle_,   &shelf_, &plan_,
               &plan_.job, &layout_, mutant,    &meetings_, &lives_} {
  lives_.last_round = swarm_.shape.rounds;
  SetServerClocks(swarm_, &world_);
  for (uint32_t s = 0; s < swarm_.shape.servers; ++s) {
    servers_.push_back(std::make_unique<SimServer>(context_, s));
    network_.Add(servers_.back().get());
  }
  for (uint32_t t = 0; t < swarm_.shape.trainers; ++t) {
    trainers_.push_back(
        std::make_unique<SimTrainer>(context_, t, plan_.epoch.members[t], /*newcomer=*/false));
  }
  std::vector<SimServer*> servers;
  for (const auto& server : servers_) servers.push_back(server.get());
  faults_ = std::make_unique<FaultPlan>(context_, servers, &trainers_,
                                        [this](uint32_t slot) { return Spawn(slot); });
}

SimTrainer* Simulation::Spawn(uint32_t slot) {
  const auto process = static_cast<uint32_t>(trainers_.size());
  if (process == swarm_.processes_max() || ending_) return nullptr;
  const server::Member who{slot, Mix(swarm_.seed + 1000 + process)};
  trainers_.push_back(std::make_unique<SimTrainer>(context_, process, who, /*newcomer=*/true));
  return trainers_.back().get();
}

std::vector<SimTrainer*> Simulation::Members() const {
  std::vector<SimTrainer*> members;
  for (const server::Member& member : oracle_.newest().members) {
    const auto it = std::find_if(trainers_.begin(), trainers_.end(), [&](const auto& trainer) {
      return trainer->who().incarnation == member.incarnation;
    });
    members.push_back(it == trainers_.end() ? nullptr : it->get());
  }
  return members;
}

bool Simulation::AllMembers(const std::function<bool(const SimTrainer&)>& holds) const {
  // Asked after every event.
  const std::vector<server::Member>& members = oracle_.newest().members;
  return std::all_of(members.begin(), members.end(), [&](const server::Member& member) {
    const auto it = std::find_if(trainers_.begin(), trainers_.end(), [&](const auto& trainer) {
      return trainer->who().incarnation == member.incarnation;
    });
    return it != trainers_.end() && (*it)->alive() && holds(**it);
  });
}

bool Simulation::RightlyOut(const SimTrainer& trainer) const {
  if (oracle_.newest().Holds(trainer.who().slot, trainer.who().incarnation)) return false;
  const Reason reason = ReasonOf(trainer.error());
  return reason == Reason::kWrongIncarnation || reason == Reason::kSlotTaken ||
         (reason == Reason::kJobFinished && ending_);
}

Simulation::~Simulation() = default;

template <typename Done>
bool Simulation::RunUntil(Tick deadline, const Done& done) {
  while (!world_.stopped() && world_.now() <= deadline && world_.events() < kEventsMax) {
    if (done()) return true;
    if (!world_.Step()) break;
    for (const auto& server : servers_) server->Sweep();
  }
  return !world_.stopped() && done();
}

// A server has ended while the job was woken, and its disk fails as it opens the files, which are
// whole: an operator has it try again.
bool Simulation::OpenedInVain(const absl::Status& error) const {
  const bool disks_fail = swarm_.faults.write_errors || swarm_.faults.sync_errors;
  return lives_.rested_epoch != 0 && disks_fail && absl::IsDataLoss(error);
}

absl::Status Simulation::ServerError() const {
  absl::Status error;
  for (const auto& server : servers_) {
    if (!server->refusal().ok()) error = server->refusal();
    const SimProcess* const process = server->process();
    if (process == nullptr || !error.ok() || process->rests()) continue;
    error = process->failure();
  }
  return error;
}

// Damage may end the job, if it says so; nothing else may.
bool Simulation::Refused() {
  absl::Status error = ServerError();
  // Everybody of the last epoch has left, or the last one but some who had died.
  if (!error.ok() && ReasonOf(error) == Reason::kJobFinished && swarm_.faults.come_and_go) {
    world_.Stop();
    return true;
  }
  for (const auto& trainer : trainers_) {
    if (!error.ok() || trainer->error().ok() || !trainer->alive()) continue;
    if (trainer->joining() && ReasonOf(trainer->error()) == Reason::kNotBegun) {
      // A server has lost the initial weights again; whoever comes next uploads all of them.
      trainer->Kill(/*announced=*/true);
      faults_->Replace(trainer->who().slot, /*always=*/true);
    } else if (RightlyOut(*trainer)) {
      world_.Met(Cover::kFenced);
    } else {
      error = trainer->error();
    }
  }
  if (error.ok()) return false;
  if (OpenedInVain(error)) {
    world_.Stop();
    return true;
  }
  const bool damaged = std::any_of(servers_.begin(), servers_.end(),
                                   [](const auto& server) { return server->damaged(); });
  if (damaged) {
    refusal_ = error.ToString();
    world_.Met(Cover::kRefused);
    world_.Stop();
  } else {
    world_.Red(absl::StrCat("the job ends: ", error.ToString()));
  }
  return true;
}

std::string Simulation::Stuck() const {
  std::string text = absl::StrCat("stuck at ", world_.now() / kMillisecond, " ms after ",
                                  world_.events(), " events:");
  for (const auto& trainer : trainers_) absl::StrAppend(&text, " [", trainer->Waiting(), "]");
  for (const auto& server : servers_) {
    const SimProcess* const process = server->process();
    absl::StrAppend(&text, " [server ",
                    process == nullptr ? "down"
                                       : absl::StrCat("round ", process->fsm().round(), " ",
                                                      PhaseName(process->fsm().phase())),
                    "]");
  }
  return text;
}

bool Simulation::MakeJob() {
  const auto begun = [this] { return oracle_.begun(); };
  // Where half of all calls are lost, nearly every attempt ends with a peer that seems lost.
  network_.SetLosesCalls(RunUntil(world_.now() + kLossyMakingMax, begun));
  if (!RunUntil(world_.now() + kQuietPhaseMax, begun)) {
    if (!world_.stopped()) world_.Red(Stuck());
    return false;
  }
  network_.SetLosesCalls(true);
  faults_->Begin();
  return true;
}

bool Simulation::RunRounds() {
  const auto finished = [this] {
    return Refused() || AllMembers([](const SimTrainer& trainer) { return trainer.finished(); });
  };
  if (!RunUntil(world_.now() + kFaultPhaseMax, [&] { return finished() || faults_->spent(); })) {
    if (world_.stopped()) return false;
  }
  if (world_.stopped()) return false;
  faults_->Calm();
  if (!RunUntil(world_.now() + kQuietPhaseMax, finished)) {
    if (!world_.stopped()) world_.Red(Stuck());
    return false;
  }
  return !world_.stopped();
}

// All servers idle after the last round, all trainers with a stream to each.
bool Simulation::FetchStates() {
  const uint64_t last = lives_.last_round + 1;
  const auto at_rest = [&] {
    if (Refused()) return true;
    for (const auto& server : servers_) {
      const SimProcess* const process = server->process();
      if (process == nullptr || process->fsm().round() != last ||
          process->fsm().phase() != server::Phase::kIdle || !process->idle()) {
        return false;
      }
    }
    return AllMembers(
        [](const SimTrainer& trainer) { return trainer.finished() && trainer.at_rest(); });
  };
  if (!RunUntil(world_.now() + kQuietPhaseMax, at_rest)) {
    if (!world_.stopped()) world_.Red(Stuck());
    return false;
  }
  if (world_.stopped()) return false;
  for (const auto& trainer : trainers_) trainer->ForgetState();
  const auto fetched = [&] {
    // Whoever is new meanwhile reads the state, too.
    for (SimTrainer* const trainer : Members()) {
      const bool ready = trainer != nullptr && trainer->finished() && trainer->at_rest();
      if (ready && !trainer->asked()) trainer->FetchState();
    }
    return Refused() || AllMembers([](const SimTrainer& trainer) { return trainer.fetched(); });
  };
  if (RunUntil(world_.now() + kQuietPhaseMax, fetched)) return !world_.stopped();
  if (!world_.stopped()) world_.Red(Stuck());
  return false;
}

bool Simulation::Meet() {
  meetings_.Calm();
  const auto met = [this] {
    return Refused() || AllMembers([](const SimTrainer& trainer) { return trainer.met(); });
  };
  if (RunUntil(world_.now() + kQuietPhaseMax, met)) return !world_.stopped();
  if (!world_.stopped()) world_.Red(Stuck());
  return false;
}

bool Simulation::TakeLastSnapshot() {
  if (swarm_.snapshots.most == 0) return true;
  shelf_.BeginNoMore();
  bool taken = false;
  bool damaged = false;
  uint64_t asked_in = 0;  // the home's life
  uint32_t asked = 0;
  const auto done = [&] {
    if (taken || Refused()) return true;
    SimSnapshots* const home = servers_[0]->snapshots();
    if (home == nullptr || !home->ready() || asked_in == world_.Life(0)) return false;
    for (const auto& server : servers_) damaged = damaged || server->disk_failed();
    if (asked == kLastSnapshotTries) return true;
    ++asked;
    asked_in = world_.Life(0);
    home->Take(absl::StrCat("last", asked), [&](const absl::Status& status) {
      taken = status.ok();
      asked_in = 0;
    });
    return false;
  };
  const bool in_time = RunUntil(world_.now() + kQuietPhaseMax, done);
  if (world_.stopped()) return false;
  if (!taken && !damaged) world_.Red(in_time ? "no snapshot can be taken any more" : Stuck());
  shelf_.Check(/*cleared=*/taken);
  return !world_.stopped();
}

bool Simulation::PowerCycle() {
  const bool power = plan_.spec.durability == Durability::kPower;
  for (const auto& server : servers_) {
    server->End(power);
    server->Start();
  }
  if (swarm_.snapshots.most > 0) shelf_.LosePower();
  if (!FetchStates()) return false;
  shelf_.Check(/*cleared=*/false);
  return !world_.stopped();
}

bool Simulation::Rest() {
  if (swarm_.rests_after == 0) return true;
  lives_.last_round = swarm_.rests_after;
  if (!RunRounds() || !LeaveAll()) return false;
  for (const auto& trainer : trainers_) trainer->Kill(/*announced=*/true);
  ending_ = false;
  const bool power = plan_.spec.durability == Durability::kPower;
  for (const auto& server : servers_) {
    if (world_.random().OneIn(2)) continue;
    server->End(power && world_.random().OneIn(2));
    server->Start();
  }
  lives_.rested_epoch = oracle_.newest().epoch;
  lives_.last_round = swarm_.shape.rounds;
  faults_->Begin();
  return true;
}

bool Simulation::LeaveAll() {
  ending_ = true;
  for (const auto& trainer : trainers_) {
    if (trainer->alive() && trainer->error().ok()) trainer->Leave();
  }
  const auto left = [&] {
    return std::all_of(servers_.begin(), servers_.end(),
                       [](const auto& server) { return server->job_ended(); });
  };
  const uint64_t life = world_.Life(/*node=*/0);
  const bool ended = RunUntil(world_.now() + kQuietPhaseMax, left);
  if (!ended && !world_.stopped() && !LeavesUnheard(life)) {
    world_.Red("the job does not end when all have left");
  }
  return !world_.stopped();
}

// A trainer that has sent its Leave does not come back when the stream breaks, and a server keeps
// in memory only which trainers have left: where the home lacks some, the job waits for others to
// take the seats. Where the home has seen the end, it must come at every server.
bool Simulation::LeavesUnheard(uint64_t life) const {
  const bool lost = world_.Life(/*node=*/0) != life || swarm_.faults.break_one_in != 0;
  return lost && !servers_[0]->job_ended() &&
         std::none_of(trainers_.begin(), trainers_.end(),
                      [](const auto& trainer) { return trainer->alive(); });
}

// In a quarter of the seeds with faults trainers search for servers that are not there yet.
void Simulation::StartServers() {
  Random random(Mix(swarm_.seed) ^ 0x1A7E57A2);
  const bool late = swarm_.faults.budget != 0 && random.OneIn(4);
  for (const auto& server : servers_) {
    server->FillDisk();
    const Tick delay = late ? random.Spread(1, 6000) * kMillisecond : 0;
    world_.After(delay, kNobody, EventKind::kStart, [&server] { server->Start(); });
  }
}

Outcome Simulation::Run() {
  StartServers();
  for (const auto& trainer : trainers_) trainer->Start();
  const bool run = MakeJob() && Rest() && RunRounds() && FetchStates() && Meet();
  if (run && TakeLastSnapshot() && PowerCycle()) LeaveAll();
  for (const auto& server : servers_) {
    if (server->disk()->reused_segment()) world_.Met(Cover::kSegmentReused);
    if (server->disk()->syncs_overlapped()) world_.Met(Cover::kFlushesOverlap);
    if (server->disk()->failed_writes() > 0) world_.Met(Cover::kWriteFailed);
    if (server->disk()->failed_syncs() > 0) world_.Met(Cover::kSyncFailed);
  }
  Outcome outcome{world_.red(), refusal_, world_.hash(), world_.events(), world_.met()};
  for (const auto& server : servers_) server->End(/*power=*/false);
  return outcome;
}

Outcome RunSeed(uint64_t seed, Mutant mutant, bool trace) {
  return Simulation(seed, mutant, trace).Run();
}

}  // namespace ballast::sim
