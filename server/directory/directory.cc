#include "server/directory/directory.h"

#include <utility>

namespace ballast::server {

Directory::Directory(const DirectoryConfig& config, const EngineDeps& deps, PeerLink* peers,
                     std::unique_ptr<JobStore> store, DirectorySnapshots snapshots)
    : self_(config),
      store_(std::move(store)),
      peers_(peers),
      metrics_(deps.metrics),
      strand_(deps.executor),
      memory_({.self = config.self,
               .bytes = config.memory_budget_bytes,
               .state_bytes = config.state_budget_bytes,
               .machine_bytes = config.machine_memory_bytes,
               .window_extents_min = config.window_extents_min,
               .credit_bytes = config.credit_bytes},
              config.quotas, deps.metrics),
      work_({.self = &self_, .strand = &strand_, .clock = deps.clock, .executors = deps.executors}),
      holds_(&self_, store_.get(), &work_, deps.isa),
      damaged_(&self_, store_.get(), deps.metrics),
      files_(&self_, std::move(snapshots)),
      jobs_({.self = &self_,
             .strand = &strand_,
             .memory = &memory_,
             .work = &work_,
             .holds = &holds_,
             .damaged = &damaged_,
             .store = store_.get(),
             .listener = &home_},
            deps),
      share_(Parts(), &holds_),
      snapshots_(Parts(), &share_),
      home_(Parts(), deps.clock, &snapshots_),
      maker_(Parts()),
      shares_(&self_, store_.get(), work_.works()),
      restores_(Parts(), &maker_, &shares_),
      exports_(Parts(), &snapshots_, deps.isa),
      imports_(Parts(), &maker_, &shares_, deps.isa),
      job_desk_(Parts(), &snapshots_),
      trainer_door_(Doors()),
      peer_door_(Doors()),
      operator_door_(Doors()) {}

void Directory::Connect() {
  strand_.SetOwner(weak_from_this());
  if (store_ != nullptr) store_->CountIn(self_.config().quotas);
}

DeskParts Directory::Parts() {
  return {.self = &self_,
          .strand = &strand_,
          .work = &work_,
          .jobs = &jobs_,
          .damaged = &damaged_,
          .names = &home_,
          .files = &files_,
          .store = store_.get(),
          .peers = peers_,
          .metrics = metrics_};
}

DoorParts Directory::Doors() {
  return {.self = &self_,
          .strand = &strand_,
          .memory = &memory_,
          .work = &work_,
          .home = &home_,
          .jobs = &jobs_,
          .job_desk = &job_desk_,
          .share = &share_,
          .snapshots = &snapshots_,
          .restores = &restores_,
          .exports = &exports_,
          .imports = &imports_};
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
    home_.StartRecovered();
  });
}

void Directory::PeerLost(uint32_t server, const std::string& why) {
  strand_.Post([=, this] {
    home_.PeerLost(server, why);
    for (const auto& engine : jobs_.Engines()) engine->PeerLost(server, why);
    if (server == self_.home().id) work_.HaltAll(self_.HomeLost(why));
  });
}

void Directory::Shutdown(std::function<void()> done) {
  strand_.Post([this, done = std::move(done)] {
    self_.Stop();
    const absl::Status why = self_.ShuttingDown();
    home_.Stop(why);
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
