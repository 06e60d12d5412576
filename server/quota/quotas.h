// Quotas: the ledger of a server, for all its threads, with errors for callers.
// Comes from: ServerSecurity, which makes it and reads the limits. Goes to: the parts of the
// directory that hold something for a tenant, and `ballastctl tenants`.
// Thread safety: thread-safe. No call waits for a disk or a peer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/sync.h"
#include "server/quota/tenant_ledger.h"

namespace ballast::server {

class Quotas {
 public:
  // `server`: this one's id, for errors. Nothing is limited until SetLimits.
  explicit Quotas(uint32_t server = 0) : server_(server) {}
  Quotas(const Quotas&) = delete;
  Quotas& operator=(const Quotas&) = delete;

  // TenantLedger's, of the same names. Take: RESOURCE_EXHAUSTED OVER_QUOTA, and nothing changes.
  void SetLimits(QuotaTable limits);
  absl::Status Take(const Holding& holding, const std::string& tenant, const Amounts& amounts);
  void Note(const Holding& holding, const std::string& tenant, const Amounts& amounts);
  void Give(const Holding& holding);
  Amounts FreeOf(const std::string& tenant) const;
  std::vector<TenantUse> Uses() const;
  TenantUse UseOf(const std::string& tenant) const;
  std::vector<Holding> OfKind(Holding::Kind kind) const;

  // A new number each time, for the name of an entry without one of its own.
  uint64_t NewNumber();

  // Whether a new entry could take `amounts`. Errors as Take's.
  absl::Status Check(const std::string& tenant, const Amounts& amounts) const;

 private:
  const uint32_t server_;
  mutable Mutex mu_;
  TenantLedger ledger_ ABSL_GUARDED_BY(mu_);
  uint64_t newest_number_ ABSL_GUARDED_BY(mu_) = 0;
};

// An entry, given back when the last copy of the pointer goes: the one use of shared_ptr here,
// because the end of a call has many copies.
std::shared_ptr<void> GiveAtEnd(std::shared_ptr<Quotas> quotas, Holding holding);

}  // namespace ballast::server
