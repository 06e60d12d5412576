// TenantLedger: each tenant's use of a server, entry by entry, against its limits. An entry is a
// thing that takes resources while it exists (a job on disk, a snapshot, a waiting attach); the
// sums of a tenant are those of its entries. So an entry gives its amounts back to the byte,
// whatever the limits were or are.
// Comes from: Quotas. Thread safety: thread-compatible. Pure: no clock, no disk, no lock.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/quota/amounts.h"

namespace ballast::server {

// The name of an entry.
struct Holding {
  enum class Kind : uint8_t {
    kStored,    // a durable job: its record and files, running or resting; by number
    kGrowth,    // files of its next layout, in addition to those; by number
    kOpen,      // a job in memory; by number
    kReserved,  // needs of a job about to be recovered; by number
    kSnapshot,  // by number
    kExport,    // by name
    kAttach,    // a call that waits; by number
  };
  Kind kind = Kind::kStored;
  uint64_t number = 0;
  std::string name = {};

  auto operator<=>(const Holding&) const = default;
};

// A tenant's line.
struct TenantUse {
  std::string tenant;
  Amounts used;
  Amounts limits;

  bool operator==(const TenantUse&) const = default;
};

class TenantLedger {
 public:
  // From now on. A tenant above its new limit keeps its entries, and gets no more of that resource.
  void SetLimits(QuotaTable limits) { limits_ = std::move(limits); }

  // Enters `amounts` in place of the entry's earlier ones, which may be none. Refuses that when the
  // tenant would have more of a resource than before and more than it may; then nothing changes.
  std::optional<Shortage> Take(const Holding& holding, const std::string& tenant,
                               const Amounts& amounts);
  // The amount that a change from `had` to `amounts` would lack.
  std::optional<Shortage> Lacks(const Amounts& had, const std::string& tenant,
                                const Amounts& amounts) const;
  // As Take, regardless of limits: for entries that exist already.
  void Note(const Holding& holding, const std::string& tenant, const Amounts& amounts);
  // Removes the entry; there may be none.
  void Give(const Holding& holding);

  Amounts UsedBy(const std::string& tenant) const;
  // The amount that the tenant may still take; kUnlimited where it has no limit.
  Amounts FreeOf(const std::string& tenant) const;
  TenantUse UseOf(const std::string& tenant) const {
    return {tenant, UsedBy(tenant), limits_.Of(tenant)};
  }
  // Tenants that use something or have a row, ascending.
  std::vector<TenantUse> Uses() const;
  // Names of the entries of that kind.
  std::vector<Holding> OfKind(Holding::Kind kind) const;

 private:
  struct Entry {
    std::string tenant;
    Amounts amounts;
  };
  // What `tenant` has with this entry.
  Amounts HadWith(const Holding& holding, const std::string& tenant) const;

  QuotaTable limits_;
  std::map<Holding, Entry> entries_;
  std::map<std::string, Amounts> used_;  // sums, of tenants with an entry
};

}  // namespace ballast::server
