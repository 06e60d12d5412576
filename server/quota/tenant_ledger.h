// TenantLedger: what each tenant has of a server, entry by entry, against what it may have. An
// entry is a thing that takes something as long as it is there (a job on disk, a snapshot, an
// attach that waits); the sums of a tenant are those of its entries. So what an entry took is given
// back to the byte, whatever the limits were or are.
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
    kGrowth,    // files of its next layout, beside those; by number
    kOpen,      // a job in memory; by number
    kReserved,  // what a job needs that is about to be recovered; by number
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
  // From now on. A tenant that has more than it may keeps that, and gets nothing more of it.
  void SetLimits(QuotaTable limits) { limits_ = std::move(limits); }

  // Enters `amounts` in place of what the entry has, which may be nothing. Refuses that when the
  // tenant would have more of a resource than before and more than it may; then nothing changes.
  std::optional<Shortage> Take(const Holding& holding, const std::string& tenant,
                               const Amounts& amounts);
  // What a change from `had` to `amounts` would lack.
  std::optional<Shortage> Lacks(const Amounts& had, const std::string& tenant,
                                const Amounts& amounts) const;
  // As Take, whatever the limits say: for what is there already.
  void Note(const Holding& holding, const std::string& tenant, const Amounts& amounts);
  // Removes the entry; there may be none.
  void Give(const Holding& holding);

  Amounts UsedBy(const std::string& tenant) const;
  // What the tenant may still take; kUnlimited where it has no limit.
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
  std::map<std::string, Amounts> used_;  // sums, of tenants that have an entry
};

}  // namespace ballast::server
