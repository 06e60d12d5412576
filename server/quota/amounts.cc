#include "server/quota/amounts.h"

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/text/names.h"

namespace ballast::server {
namespace {

constexpr char kFewerJobs[] = "delete jobs that are not needed any more";
constexpr char kEndJobs[] = "end a job of this tenant";

constexpr Resource kResources[] = {
    {"jobs", &Amounts::jobs, false, "jobs", kFewerJobs},
    {"seats", &Amounts::seats, false, "seats", kEndJobs},
    {"dram", &Amounts::dram_bytes, true, "bytes of memory", kEndJobs},
    {"disk", &Amounts::disk_bytes, true, "bytes of disk",
     "delete jobs, snapshots or exports of this tenant"},
    {"in_flight", &Amounts::in_flight_bytes, true, "bytes in flight", kEndJobs},
    {"waiting_attaches", &Amounts::waiting_attaches, false, "attaches that wait",
     "attach again when others have their seats"},
};
static_assert(sizeof(kResources) / sizeof(Resource) == sizeof(Amounts) / sizeof(uint64_t));

}  // namespace

absl::Span<const Resource> Resources() { return kResources; }

Amounts NoLimits() {
  Amounts none;
  for (const Resource& resource : kResources) none.*resource.amount = kUnlimited;
  return none;
}

const Amounts& QuotaTable::Of(const std::string& tenant) const {
  const auto row = tenants.find(tenant);
  return row == tenants.end() ? others : row->second;
}

absl::Status OverQuota(absl::string_view tenant, const Shortage& shortage, uint32_t server) {
  const Resource& resource = *shortage.resource;
  return ReasonedError(
      absl::StatusCode::kResourceExhausted, Reason::kOverQuota,
      absl::StrCat("tenant ", Quoted(tenant), " uses ", shortage.used, " of ", shortage.limit, " ",
                   resource.unit, " that it may use at server ", server, ", and this takes ",
                   shortage.more, " more; ", resource.remedy, ", or raise `", resource.key,
                   "` of the tenant in security.quotas_file"),
      {.server = static_cast<int>(server)});
}

}  // namespace ballast::server
