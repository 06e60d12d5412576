// A server's storage on its disks: the file system of its jobs, its metadata, its durable jobs,
// snapshots and exports.
// Comes from: server.cc. Goes to: server/meta, server/directory.
// Thread safety: the opening calls are for one thread; their results state their own rules.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ballast/config/v1/server.pb.h"
#include "common/io/file.h"
#include "common/io/watched_files.h"
#include "server/directory/job_directory.h"
#include "server/meta/reserved_store.h"

namespace ballast::server {

// Outlives the directory of jobs, which writes through it until its end.
class ServerStorage {
 public:
  // `config` outlives this. `incarnation` is this process's own number. `storage_failed` runs if
  // the metadata store cannot write; the process must then end.
  ServerStorage(const config::v1::ServerConfig& config, uint64_t incarnation,
                std::function<void(const absl::Status&)> storage_failed);

  // Opens the durable jobs below storage.data_dir; null without one. Registers this server under
  // `address`. Errors: UNAVAILABLE if the disk has no room for the metadata store; those of
  // OpenRocksDbMetaStore and RegisterServer.
  absl::StatusOr<std::unique_ptr<JobStore>> OpenJobs(const std::string& address);
  // Opens the snapshots and exports of durable jobs; empty without a data directory. A cluster of
  // several `servers` without storage.snapshot_dir refuses them with UNSUPPORTED.
  absl::StatusOr<DirectorySnapshots> OpenSnapshots(size_t servers);
  // Unfinished disk calls of everything opened here. May outlive it.
  std::shared_ptr<const CallsUnderWay> calls() const { return calls_; }

 private:
  absl::StatusOr<std::unique_ptr<MetaStore>> OpenMetadata(const std::string& data_dir);

  const config::v1::ServerConfig& config_;
  const uint64_t incarnation_;
  const std::function<void(const absl::Status&)> storage_failed_;
  // In order of construction; each member may use those above it.
  const std::shared_ptr<CallsUnderWay> calls_;
  const std::unique_ptr<FileSystem> engine_files_;
  const std::unique_ptr<FileSystem> files_;
  std::optional<DiskReserve> reserve_;
  std::unique_ptr<MetaStore> meta_;  // null without a data directory
};

}  // namespace ballast::server
