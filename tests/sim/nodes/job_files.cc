#include "tests/sim/nodes/job_files.h"

#include <utility>

#include "common/base/status_macros.h"
#include "common/bytes/crc32c.h"
#include "server/convert/plan_convert.h"
#include "server/durability/records/bytes.h"
#include "server/recovery/recovery.h"
#include "server/round/job_plan.h"

namespace ballast::sim {
namespace {

constexpr char kDirectory[] = "/meta";
constexpr char kFile[] = "/meta/records";
constexpr size_t kBytesMax = size_t{1} << 20;

}  // namespace

// --- Records ------------------------------------------------------------------------------------

absl::Status SimRecords::Load() {
  absl::StatusOr<std::string> bytes = ReadWholeFile(fs_, kFile, kBytesMax);
  if (absl::IsNotFound(bytes.status())) {
    BALLAST_RETURN_IF_ERROR(fs_->MakeDirectory(kDirectory));
    return fs_->SyncDirectory("/");
  }
  BALLAST_RETURN_IF_ERROR(bytes.status());
  const absl::Status damaged = absl::DataLossError("the records are damaged");
  if (bytes->size() < sizeof(uint32_t)) return damaged;
  server::ByteReader in(*bytes);
  const auto crc = in.Get<uint32_t>();
  if (crc != Crc32c(bytes->data() + sizeof(crc), bytes->size() - sizeof(crc))) return damaged;
  while (!in.AtEnd()) {
    std::string key = in.GetBytes(in.GetCount(1));
    std::string value = in.GetBytes(in.GetCount(1));
    server::MetaTxn txn;
    txn.puts.push_back({std::move(key), std::move(value)});
    BALLAST_RETURN_IF_ERROR(MemoryMetaStore::Txn(txn).status());
  }
  return absl::OkStatus();
}

absl::StatusOr<server::MetaTxnResult> SimRecords::Txn(const server::MetaTxn& txn) {
  const uint64_t before = MemoryMetaStore::Txn({})->revision;
  BALLAST_ASSIGN_OR_RETURN(const server::MetaTxnResult result, MemoryMetaStore::Txn(txn));
  if (!result.committed || result.revision == before) return result;
  if (const absl::Status written = Write(); !written.ok()) {
    failed_(written);
    return absl::UnavailableError(written.message());
  }
  written_(txn);
  return result;
}

absl::Status SimRecords::Write() {
  BALLAST_ASSIGN_OR_RETURN(const server::MetaPage all, List({}));
  server::ByteWriter out;
  for (const server::MetaEntry& entry : all.entries) {
    for (const std::string* const part : {&entry.key, &entry.value}) {
      out.Put(static_cast<uint32_t>(part->size()));
      out.PutBytes(*part);
    }
  }
  const std::string body = out.Take();
  server::ByteWriter check;
  check.Put<uint32_t>(Crc32c(body.data(), body.size()));
  return ReplaceFile(fs_, kFile, check.Take() + body);
}

// --- Files --------------------------------------------------------------------------------------

server::StorageOptions SimSizes(const Context& context, const server::JobPlan& plan,
                                uint32_t server) {
  const Shape& shape = context.swarm->shape;
  server::StorageOptions options = server::StorageOptionsOf(plan, *server::LayoutOfSpec(plan.spec),
                                                            server, shape.checkpoint_rounds);
  // A page is enough for the PREPARE or the decision of so small a job.
  options.record_bytes = 0;
  options.segment_bytes_min = shape.segment_bytes_min;
  options.images.open_threads = 1;
  return options;
}

SimStore::SimStore(const Context& context, SimDisk* disk, server::MetaStore* records, uint32_t self,
                   std::function<void(const server::JobPlan&, server::JobStorage*)> opened)
    : JobStore(disk, kJobsRoot, records, self, context.swarm->shape.checkpoint_rounds,
               server::MakePlanCodec(), [self] { return Mix(self); }),
      context_(context),
      self_(self),
      opened_(std::move(opened)) {}

server::StorageOptions SimStore::SizesOf(const server::JobPlan& plan, const Layout&,
                                         uint32_t server) const {
  return SimSizes(context_, plan, server);
}

absl::StatusOr<std::unique_ptr<server::JobStorage>> SimStore::Create(const server::JobPlan& plan,
                                                                     const Fill& fill) {
  // The home comes first in every attempt.
  if (self_ == plan.servers.front()) *context_.job = plan.job;
  auto storage = JobStore::Create(plan, fill);
  if (storage.ok()) opened_(plan, storage->get());
  return storage;
}

absl::StatusOr<std::unique_ptr<server::JobStorage>> SimStore::Open(const server::JobPlan& plan) {
  auto storage = JobStore::Open(plan);
  if (storage.ok()) opened_(plan, storage->get());
  return storage;
}

}  // namespace ballast::sim
