#include "server/directory/directory.h"

#include <utility>

namespace ballast::server {
namespace {

MemoryBook::Budget BudgetOf(const DirectoryConfig& config) {
  return {.self = config.self,
          .bytes = config.memory_budget_bytes,
          .state_bytes = config.state_budget_bytes,
          .machine_bytes = config.machine_memory_bytes,
          .window_extents_min = config.window_extents_min,
          .credit_bytes = config.credit_bytes};
}

}  // namespace

Directory::Directory(const DirectoryConfig& config, const EngineDeps& deps, PeerLink* peers,
                     std::unique_ptr<JobStore> store, DirectorySnapshots snapshots)
    : self_(config),
      store_(std::move(store)),
      peers_(peers),
      metrics_(deps.metrics),
      strand_(deps.executor),
      memory_(BudgetOf(config), config.quotas, deps.metrics),
      work_({.self = &self_, .strand = &strand_, .clock = deps.clock, .executors = deps.executors}),
      holds_(&self_, store_.get(), &work_, deps.isa),
      damaged_(&self_, store_.get(), deps.metrics),
      files_(&self_, std::move(snapshots)),
      jobs_(LocalParts(), deps),
      homes_(HomeParts(deps)),
      names_(
          {.homes = &homes_.table(), .resting = &resting_, .damaged = &damaged_, .jobs = &jobs_}),
      orphans_(Parts()),
      rolls_(Parts()),
      events_({.self = &self_,
               .homes = &homes_,
               .resting = &resting_,
               .orphans = &orphans_,
               .rolls = &rolls_}),
      snapshot_share_(Parts(), &holds_),
      snapshots_(Parts(), &snapshot_share_),
      maker_(Parts()),
      shares_(&self_, store_.get(), work_.works()),
      restores_(Parts(), &maker_, &shares_),
      exports_(Parts(), &snapshots_, deps.isa),
      imports_(Parts(), &maker_, &shares_, deps.isa),
      job_admin_(Parts(), &memory_) {}

void Directory::Connect() {
  strand_.SetOwner(weak_from_this());
  if (store_ != nullptr) store_->CountIn(self_.config().quotas);
}

LocalJobs::Parts Directory::LocalParts() {
  return {.self = &self_,
          .strand = &strand_,
          .memory = &memory_,
          .work = &work_,
          .holds = &holds_,
          .damaged = &damaged_,
          .store = store_.get(),
          .listener = &events_};
}

HomeJobs::Parts Directory::HomeParts(const EngineDeps& deps) {
  return {.self = &self_,
          .strand = &strand_,
          .clock = deps.clock,
          .shares = &jobs_,
          .resting = &resting_,
          .damaged = &damaged_,
          .peers = peers_,
          .under_way = metrics_ == nullptr ? nullptr : metrics_->jobs_under_way()};
}

DirectoryParts Directory::Parts() {
  return {.self = &self_,
          .strand = &strand_,
          .work = &work_,
          .jobs = &jobs_,
          .damaged = &damaged_,
          .homes = &homes_.table(),
          .resting = &resting_,
          .names = &names_,
          .files = &files_,
          .store = store_.get(),
          .peers = peers_,
          .metrics = metrics_};
}

JobApis Directory::apis() {
  return {.trainers = &homes_,
          .lookup = &jobs_,
          .shares = &jobs_,
          .records = &rolls_,
          .snapshot_shares = &snapshot_share_,
          .jobs = &job_admin_,
          .snapshots = &snapshots_,
          .restores = &restores_,
          .exports = &exports_,
          .imports = &imports_,
          .quotas = &memory_.quotas()};
}

absl::Status Directory::Recover() {
  if (absl::Status status = jobs_.Recover(); !status.ok()) return status;
  if (absl::Status status = files_.Count(); !status.ok()) return status;
  exports_.Count();
  return maker_.Recover();
}

void Directory::StartRecovered() {
  jobs_.StartRecovered();
  strand_.Post([this] {
    maker_.StartRecovered();
    orphans_.AskUntilAnswered();
    rolls_.Begin();
    homes_.Start();
  });
}

void Directory::PeerLost(uint32_t server, const std::string& why) {
  strand_.Post([=, this] {
    homes_.OnPeerLost(server, why);
    // A home that comes back may have come without its data directory.
    if (server == self_.home().id) rolls_.Begin();
    for (const auto& engine : jobs_.Engines()) engine->PeerLost(server, why);
    if (server == self_.home().id) work_.CancelAll(self_.HomeLost(why));
  });
}

void Directory::Shutdown(std::function<void()> done) {
  strand_.Post([this, done = std::move(done)] {
    self_.Stop();
    const absl::Status why = self_.ShuttingDown();
    homes_.FailCalls(why);
    for (const auto& engine : jobs_.Engines()) engine->Fail(why);
    holds_.CancelAll();
    work_.Stop(why, done);
  });
}

std::shared_ptr<JobDirectory> JobDirectory::Create(const DirectoryConfig& config,
                                                   const EngineDeps& deps, PeerLink* peers,
                                                   std::unique_ptr<JobStore> store,
                                                   DirectorySnapshots snapshots) {
  auto directory =
      std::make_shared<Directory>(config, deps, peers, std::move(store), std::move(snapshots));
  directory->Connect();
  return directory;
}

}  // namespace ballast::server
