// Operators' requests to the home, and their view of jobs and snapshots, as plain values.
// Comes from: the Admin service. Goes to: the desks. Thread safety: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/exchange/export_plan.h"
#include "server/round/round_types.h"

namespace ballast::server {

// A durable job as its home knows it.
struct DurableJob {
  std::string name;
  std::string tenant = kDefaultTenant;
  uint64_t job = 0;
  std::string state;  // running | resting: on disk only | damaged | unopened
  Durability durability = Durability::kPower;
  uint32_t world = 0;
  uint32_t epoch = 0;
  uint64_t round = 0;  // the next
  uint64_t parameters = 0;
  uint32_t tensors = 0;
  uint32_t groups = 0;
  std::vector<uint32_t> servers;
  uint32_t open_streams = 0;  // attached trainers
  uint64_t disk_bytes = 0;    // of all its servers, if they are set up as the home is
};
using DurableJobs = std::vector<DurableJob>;

// A snapshot as its home knows it.
struct SnapshotInfo {
  uint64_t id = 0;
  std::string tenant = kDefaultTenant;
  std::string job;
  std::string name;
  uint64_t round = 0;  // the first one of a job made from it
  uint64_t created_s = 0;
  uint64_t bytes = 0;  // on disk
  uint64_t parameters = 0;
  uint32_t world = 0;
  std::vector<uint32_t> servers;
};

// Which snapshots are listed.
struct SnapshotFilter {
  std::optional<std::string> tenant;  // of this one; nullopt: of all
  std::string job;                    // of this one; empty: of all
};

// The restore of a snapshot as a job.
struct RestoreCall {
  std::string tenant = kDefaultTenant;  // of the snapshot and of the new job
  std::string job;                      // of the snapshot
  std::string snapshot;                 // its name
  std::string as;                       // name of the new job
  uint32_t world = 0;                   // of that job; 0: as it was
  // A fork: the job's slots begin in the snapshot's files (borrowed_images.h); nothing is copied.
  bool share = false;

  QualifiedName made() const { return {tenant, as}; }
};

struct RestoredJob {
  DurableJob job;
  std::string copied;  // why a server copied files instead of sharing them; empty: none did
};

// The export of a job's state as files.
struct ExportCall {
  std::string tenant = kDefaultTenant;  // of the job and of the export
  std::string job;
  std::string snapshot;       // its name; empty: the present state, of which one is taken meanwhile
  std::string name;           // of the export: its directory in storage.export_dir
  DType dtype = kNoDType;     // of the weights; unspecified: each tensor's own
  bool state = false;         // optimizer state, too
  bool consolidated = false;  // one server writes all of it, in one file of each kind
  ExportFormat format = ExportFormat::kSafetensors;  // kUniversal: without dtype and state
  bool torch_optimizer = false;  // of kUniversal: for torch's optimizer, not DeepSpeed's
};

struct ExportInfo {
  std::string directory;
  uint64_t round = 0;  // the first one of a job made from it
  uint64_t bytes = 0;
  uint32_t files = 0;  // of tensors
  uint32_t tensors = 0;
  uint64_t parameters = 0;
};

// The import of an export as a job.
struct ImportCall {
  std::string tenant = kDefaultTenant;  // of the export and of the new job
  std::string from;                     // name of the export
  std::string as;                       // name of the new job
  uint32_t world = 0;                   // of that job; 0: as it was

  QualifiedName made() const { return {tenant, as}; }
};

struct ImportInfo {
  DurableJob job;
  bool state = false;  // with optimizer state; else moments and step counts begin at 0
  uint64_t bytes = 0;
};

}  // namespace ballast::server
