// The durable jobs of a simulated server on its disk: SimRecords, the metadata store, as one file
// that every transaction replaces as a whole, with a checksum; SimStore, the shipped JobStore, with
// logs that wrap in a few rounds.
// Comes from: SimProcess. Goes to: SimDisk. Thread safety: one thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "server/jobs/job_store.h"
#include "server/meta/memory_store.h"
#include "tests/sim/nodes/context.h"
#include "tests/sim/world/disk.h"

namespace ballast::sim {

inline constexpr char kJobsRoot[] = "/jobs";

class SimRecords final : public server::MemoryMetaStore {
 public:
  // `fs` outlives this. `failed`: a transaction did not reach the disk, so the process must end, as
  // RocksDB's store wants it. `written`: after one that did.
  SimRecords(FileSystem* fs, std::function<void(const absl::Status&)> failed,
             std::function<void(const server::MetaTxn&)> written)
      : fs_(fs), failed_(std::move(failed)), written_(std::move(written)) {}

  // Once, before all else. Errors: the disk's; DATA_LOSS when the file is damaged.
  absl::Status Load();
  absl::StatusOr<server::MetaTxnResult> Txn(const server::MetaTxn& txn) override;

 private:
  absl::Status Write();

  FileSystem* const fs_;
  const std::function<void(const absl::Status&)> failed_;
  const std::function<void(const server::MetaTxn&)> written_;
};

class SimStore final : public server::JobStore {
 public:
  // `opened` sees the files of a job as they are made or opened.
  SimStore(const Context& context, SimDisk* disk, server::MetaStore* records, uint32_t self,
           std::function<void(const server::JobPlan&, server::JobStorage*)> opened);

  absl::StatusOr<std::unique_ptr<server::JobStorage>> Create(const server::JobPlan& plan,
                                                             const Fill& fill) override;
  absl::StatusOr<std::unique_ptr<server::JobStorage>> Open(const server::JobPlan& plan) override;

 private:
  server::StorageOptions SizesOf(const server::JobPlan& plan, const Layout& layout,
                                 uint32_t server) const override;

  const Context context_;
  const uint32_t self_;
  const std::function<void(const server::JobPlan&, server::JobStorage*)> opened_;
};

// Of a job on the server `server`, with logs as SimStore's.
server::StorageOptions SimSizes(const Context& context, const server::JobPlan& plan,
                                uint32_t server);

}  // namespace ballast::sim
