#include "tests/sim/nodes/manifest.h"

#include "common/base/status_macros.h"
#include "common/bytes/crc32c.h"
#include "server/durability/records/bytes.h"
#include "server/round/job_plan.h"

namespace ballast::sim {
namespace {

constexpr size_t kMemberBytes = 12;
constexpr size_t kBytesMax = 4096;

}  // namespace

absl::Status SaveManifest(FileSystem* fs, const std::string& path, const server::JobPlan& plan) {
  server::ByteWriter out;
  out.Put(plan.epoch.epoch);
  out.Put(plan.epoch.start_round);
  out.Put(plan.sealed_epoch);
  out.Put<uint32_t>(plan.epoch.init_again ? 1 : 0);
  out.Put<uint32_t>(plan.epoch.world());
  for (const server::Member& member : plan.epoch.members) {
    out.Put(member.slot);
    out.Put(member.incarnation);
  }
  const std::string body = out.Take();
  server::ByteWriter check;
  check.Put<uint32_t>(Crc32c(body.data(), body.size()));
  return ReplaceFile(fs, path, check.Take() + body);
}

absl::StatusOr<server::JobPlan> LoadManifest(FileSystem* fs, const std::string& path,
                                             const server::JobPlan& base) {
  BALLAST_ASSIGN_OR_RETURN(const std::string bytes, ReadWholeFile(fs, path, kBytesMax));
  const absl::Status damaged = absl::DataLossError("the manifest is damaged");
  if (bytes.size() < sizeof(uint32_t)) return damaged;
  server::ByteReader in(bytes);
  const auto crc = in.Get<uint32_t>();
  if (crc != Crc32c(bytes.data() + sizeof(crc), bytes.size() - sizeof(crc))) return damaged;
  server::JobPlan plan = base;
  plan.epoch.epoch = in.Get<uint32_t>();
  plan.epoch.start_round = in.Get<uint64_t>();
  plan.sealed_epoch = in.Get<uint32_t>();
  plan.epoch.init_again = in.Get<uint32_t>() != 0;
  plan.epoch.members.resize(in.GetCount(kMemberBytes));
  for (server::Member& member : plan.epoch.members) {
    member.slot = in.Get<uint32_t>();
    member.incarnation = in.Get<uint64_t>();
  }
  if (!in.AtEnd()) return damaged;
  plan.epoch.contributors = server::ContributorsOf(plan.spec, plan.epoch.members);
  return plan;
}

}  // namespace ballast::sim
