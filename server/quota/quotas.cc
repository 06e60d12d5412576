#include "server/quota/quotas.h"

#include <optional>
#include <utility>

namespace ballast::server {

void Quotas::SetLimits(QuotaTable limits) {
  MutexLock lock(&mu_);
  ledger_.SetLimits(std::move(limits));
}

absl::Status Quotas::Take(const Holding& holding, const std::string& tenant,
                          const Amounts& amounts) {
  std::optional<Shortage> shortage;
  {
    MutexLock lock(&mu_);
    shortage = ledger_.Take(holding, tenant, amounts);
  }
  return shortage.has_value() ? OverQuota(tenant, *shortage, server_) : absl::OkStatus();
}

void Quotas::Note(const Holding& holding, const std::string& tenant, const Amounts& amounts) {
  MutexLock lock(&mu_);
  ledger_.Note(holding, tenant, amounts);
}

void Quotas::Give(const Holding& holding) {
  MutexLock lock(&mu_);
  ledger_.Give(holding);
}

Amounts Quotas::FreeOf(const std::string& tenant) const {
  MutexLock lock(&mu_);
  return ledger_.FreeOf(tenant);
}

std::vector<TenantUse> Quotas::Uses() const {
  MutexLock lock(&mu_);
  return ledger_.Uses();
}

TenantUse Quotas::UseOf(const std::string& tenant) const {
  MutexLock lock(&mu_);
  return ledger_.UseOf(tenant);
}

uint64_t Quotas::NewNumber() {
  MutexLock lock(&mu_);
  return ++newest_number_;
}

std::vector<Holding> Quotas::OfKind(Holding::Kind kind) const {
  MutexLock lock(&mu_);
  return ledger_.OfKind(kind);
}

absl::Status Quotas::Check(const std::string& tenant, const Amounts& amounts) const {
  std::optional<Shortage> shortage;
  {
    MutexLock lock(&mu_);
    shortage = ledger_.Lacks(Amounts(), tenant, amounts);
  }
  return shortage.has_value() ? OverQuota(tenant, *shortage, server_) : absl::OkStatus();
}

std::shared_ptr<void> GiveAtEnd(std::shared_ptr<Quotas> quotas, Holding holding) {
  // With a constructor: Clang 14 does not make an aggregate from values in parentheses.
  struct End {
    End(std::shared_ptr<Quotas> from, Holding held)
        : quotas(std::move(from)), holding(std::move(held)) {}
    ~End() { quotas->Give(holding); }
    std::shared_ptr<Quotas> quotas;
    Holding holding;
  };
  return std::make_shared<End>(std::move(quotas), std::move(holding));
}

}  // namespace ballast::server
