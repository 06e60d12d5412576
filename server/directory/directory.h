// Directory: JobDirectory's one implementation. It puts the parts together, and starts and stops
// them. The parts share one strand.
// Comes from: JobDirectory::Create. Goes to: its parts.
// Thread safety: as JobDirectory's; every call is posted to the strand.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "server/directory/job_directory.h"
#include "server/directory/job_events.h"
#include "server/directory/orphaned_jobs.h"
#include "server/directory/roll_call.h"
#include "server/home/home_jobs.h"
#include "server/home/job_names.h"
#include "server/jobs/local_jobs.h"
#include "server/operator/directory_parts.h"
#include "server/operator/exporter.h"
#include "server/operator/importer.h"
#include "server/operator/job_admin.h"
#include "server/operator/job_maker.h"
#include "server/operator/restorer.h"
#include "server/operator/share_maker.h"
#include "server/operator/snapshotter.h"

namespace ballast::server {

class Directory final : public JobDirectory, public std::enable_shared_from_this<Directory> {
 public:
  Directory(const DirectoryConfig& config, const EngineDeps& deps, PeerLink* peers,
            std::unique_ptr<JobStore> store, DirectorySnapshots snapshots);
  // Waits for the threads for the disk, which use the parts.
  ~Directory() override { work_.Join(); }
  // Connects the strand; called once, when a shared_ptr holds the directory.
  void Connect();

  absl::Status Recover() override;
  void StartRecovered() override;

  JobApis apis() override;

  void PeerLost(uint32_t server, const std::string& why) override;
  void Shutdown(std::function<void()> done) override;

  // For the simulator: the process has ended. Drops engines and waiting tasks, and never runs
  // another.
  void Abandon() {
    strand_.Close();
    jobs_.Abandon();
  }

 private:
  LocalJobs::Parts LocalParts();
  HomeJobs::Parts HomeParts(const EngineDeps& deps);
  DirectoryParts Parts();

  // In the order of construction; a part that stands before another may point to that.
  ThisServer self_;
  const std::unique_ptr<JobStore> store_;  // may be null
  PeerLink* const peers_;
  ServerMetrics* const metrics_;  // may be null
  OwnerStrand strand_;
  MemoryBook memory_;
  BackgroundTasks work_;
  RestingJobFiles holds_;
  DamagedJobs damaged_;
  SnapshotFiles files_;
  RestingJobs resting_;
  LocalJobs jobs_;
  HomeJobs homes_;
  JobNames names_;
  OrphanedJobs orphans_;
  RollCall rolls_;
  JobEvents events_;
  SnapshotShare snapshot_share_;
  Snapshotter snapshots_;
  JobMaker maker_;
  ShareMaker shares_;
  Restorer restores_;
  Exporter exports_;
  Importer imports_;
  JobAdmin job_admin_;
};

}  // namespace ballast::server
