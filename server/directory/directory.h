// Directory: JobDirectory's one implementation. It puts the parts together, and starts and stops
// them. The parts share one strand.
// Comes from: JobDirectory::Create. Goes to: Home, LocalJobs, LongWork, the desks and the doors.
// Thread safety: as JobDirectory's; every call is posted to the strand.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "server/directory/job_directory.h"
#include "server/directory/strand_doors.h"
#include "server/operator/desk_parts.h"
#include "server/operator/job_maker.h"
#include "server/operator/share_maker.h"

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

  TrainerDoor* trainers() override { return &trainer_door_; }
  PeerDoor* peers() override { return &peer_door_; }
  OperatorDoor* operators() override { return &operator_door_; }
  JobLookup* lookup() override { return &jobs_; }

  void PeerLost(uint32_t server, const std::string& why) override;
  void Shutdown(std::function<void()> done) override;

 private:
  DeskParts Parts();
  DoorParts Doors();

  // In the order of construction; a part that stands before another may point to that.
  ThisServer self_;
  const std::unique_ptr<JobStore> store_;  // may be null
  PeerLink* const peers_;
  ServerMetrics* const metrics_;  // may be null
  OwnerStrand strand_;
  MemoryBook memory_;
  LongWork work_;
  RestingHolds holds_;
  DamagedJobs damaged_;
  SnapshotFiles files_;
  LocalJobs jobs_;
  SnapshotShare share_;
  SnapshotDesk snapshots_;
  Home home_;
  JobMaker maker_;
  ShareMaker shares_;
  RestoreDesk restores_;
  ExportDesk exports_;
  ImportDesk imports_;
  JobsDesk job_desk_;
  StrandTrainerDoor trainer_door_;
  StrandPeerDoor peer_door_;
  StrandOperatorDoor operator_door_;
};

}  // namespace ballast::server
