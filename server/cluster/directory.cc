#include "server/cluster/directory.h"

#include <algorithm>

#include "absl/base/thread_annotations.h"
#include "common/base/sync.h"

namespace ballast::server {

Directory::Directory(const DirectoryConfig& config, const EngineDeps& deps, PeerLink* peers,
                     std::unique_ptr<JobStore> store, DirectorySnapshots snapshots)
    : self_(config),
      store_(std::move(store)),
      peers_(peers),
      strand_(deps.executor),
      memory_({.self = config.self,
               .bytes = config.memory_budget_bytes,
               .state_bytes = config.state_budget_bytes,
               .window_extents_min = config.window_extents_min},
              deps.metrics),
      work_({.self = &self_, .strand = &strand_, .clock = deps.clock, .executors = deps.executors}),
      holds_(&self_, store_.get(), &work_, deps.isa),
      files_(&self_, std::move(snapshots)),
      jobs_({.self = &self_,
             .strand = &strand_,
             .memory = &memory_,
             .work = &work_,
             .holds = &holds_,
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
      job_list_(Parts(), &snapshots_) {}

DeskParts Directory::Parts() {
  return {.self = &self_,
          .strand = &strand_,
          .work = &work_,
          .jobs = &jobs_,
          .names = &home_,
          .files = &files_,
          .store = store_.get(),
          .peers = peers_};
}

absl::Status Directory::Recover() {
  if (absl::Status status = jobs_.Recover(); !status.ok()) return status;
  return maker_.Recover();
}

void Directory::StartRecovered() {
  jobs_.StartRecovered();
  Post([this] {
    maker_.StartRecovered();
    home_.StartRecovered();
  });
}

void Directory::PeerLost(uint32_t server, const std::string& why) {
  Post([=, this] {
    home_.PeerLost(server, why);
    for (const auto& engine : jobs_.Engines()) engine->PeerLost(server, why);
    if (server == self_.home().id) work_.HaltAll(self_.HomeLost(why));
  });
}

void Directory::Shutdown(std::function<void()> done) {
  Post([this, done = std::move(done)] {
    self_.Stop();
    const absl::Status why = self_.ShuttingDown();
    home_.Stop(why);
    for (const auto& engine : jobs_.Engines()) engine->Fail(why);
    holds_.CancelAll();
    work_.Stop(why, done);
  });
}

void Directory::DoSnapshot(const std::function<void(std::vector<JobSnapshot>)>& done) {
  struct Collected {
    Mutex mu;
    std::vector<JobSnapshot> jobs ABSL_GUARDED_BY(mu);
  };
  const auto collected = std::make_shared<Collected>();
  auto engines = jobs_.Engines();
  for (JobSnapshot& attaching : home_.Attaching()) {
    std::erase_if(engines, [&](const auto& engine) { return engine->job() == attaching.job; });
    MutexLock lock(&collected->mu);
    collected->jobs.push_back(std::move(attaching));
  }
  const auto gather = std::make_shared<Gather>(engines.size(), [collected, done](absl::Status) {
    MutexLock lock(&collected->mu);
    std::sort(collected->jobs.begin(), collected->jobs.end(),
              [](const JobSnapshot& a, const JobSnapshot& b) { return a.name < b.name; });
    done(collected->jobs);
  });
  for (const auto& engine : engines) {
    engine->Snapshot([collected, gather](JobSnapshot job) {
      {
        MutexLock lock(&collected->mu);
        collected->jobs.push_back(std::move(job));
      }
      gather->Add(absl::OkStatus());
    });
  }
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
