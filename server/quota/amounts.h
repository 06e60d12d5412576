// The resources of a server that a tenant's quota limits, and amounts of them.
// Comes from: the quota file, the parts that hold something for a tenant. Goes to: TenantLedger,
// messages, `ballastctl tenants`. Thread safety: plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ballast::server {

// No limit.
inline constexpr uint64_t kUnlimited = UINT64_MAX;

// An amount of each resource. As a limit, kUnlimited means none.
struct Amounts {
  uint64_t jobs = 0;             // that run, and that rest on disk
  uint64_t seats = 0;            // of jobs in memory
  uint64_t dram_bytes = 0;       // of the memory plans of these jobs
  uint64_t disk_bytes = 0;       // logs, slots, snapshots and exports
  uint64_t in_flight_bytes = 0;  // that trainers in these seats may have in flight to the server
  uint64_t waiting_attaches = 0;

  bool operator==(const Amounts&) const = default;
};

// Name of a resource in files, tables and messages.
struct Resource {
  const char* key;  // in the quota file
  uint64_t Amounts::*amount;
  bool bytes;
  const char* unit;    // completes "3 of 4 ..."
  const char* remedy;  // next step of a tenant that needs more: an imperative
};

// All of them, in the order of the members.
absl::Span<const Resource> Resources();

// Limits that limit nothing.
Amounts NoLimits();

// The limits of all tenants.
struct QuotaTable {
  Amounts others = NoLimits();             // of tenants without a row
  std::map<std::string, Amounts> tenants;  // rows, by tenant

  const Amounts& Of(const std::string& tenant) const;
};

// That a tenant would have more than it may.
struct Shortage {
  const Resource* resource = nullptr;
  uint64_t used = 0;
  uint64_t limit = 0;
  uint64_t more = 0;  // requested beyond `used`
};

// RESOURCE_EXHAUSTED OVER_QUOTA of `tenant` at server `server`: both numbers, and the next step.
absl::Status OverQuota(absl::string_view tenant, const Shortage& shortage, uint32_t server);

}  // namespace ballast::server
