#include "server/quota/tenant_ledger.h"

#include <algorithm>
#include <set>

namespace ballast::server {
namespace {

// Sums are modulo 2^64, so that a refund is exact even of numbers that no disk has.
void Add(const Amounts& amounts, Amounts* to) {
  for (const Resource& resource : Resources()) to->*resource.amount += amounts.*resource.amount;
}

void Subtract(const Amounts& amounts, Amounts* from) {
  for (const Resource& resource : Resources()) from->*resource.amount -= amounts.*resource.amount;
}

// Of one resource: what may be taken yet.
uint64_t Left(uint64_t used, uint64_t limit) {
  return limit == kUnlimited ? kUnlimited : limit - std::min(limit, used);
}

}  // namespace

Amounts TenantLedger::HadWith(const Holding& holding, const std::string& tenant) const {
  const auto entry = entries_.find(holding);
  const bool its = entry != entries_.end() && entry->second.tenant == tenant;
  return its ? entry->second.amounts : Amounts();
}

std::optional<Shortage> TenantLedger::Lacks(const Amounts& had, const std::string& tenant,
                                            const Amounts& amounts) const {
  const Amounts free = FreeOf(tenant);
  for (const Resource& resource : Resources()) {
    const uint64_t before = had.*resource.amount;
    const uint64_t after = amounts.*resource.amount;
    if (after <= before || after - before <= free.*resource.amount) continue;
    return Shortage{.resource = &resource,
                    .used = UsedBy(tenant).*resource.amount,
                    .limit = limits_.Of(tenant).*resource.amount,
                    .more = after - before};
  }
  return std::nullopt;
}

std::optional<Shortage> TenantLedger::Take(const Holding& holding, const std::string& tenant,
                                           const Amounts& amounts) {
  std::optional<Shortage> lacks = Lacks(HadWith(holding, tenant), tenant, amounts);
  if (!lacks.has_value()) Note(holding, tenant, amounts);
  return lacks;
}

void TenantLedger::Note(const Holding& holding, const std::string& tenant, const Amounts& amounts) {
  Give(holding);
  entries_[holding] = {tenant, amounts};
  Add(amounts, &used_[tenant]);
}

void TenantLedger::Give(const Holding& holding) {
  const auto entry = entries_.find(holding);
  if (entry == entries_.end()) return;
  const auto sum = used_.find(entry->second.tenant);
  // An entry of nothing does not keep the sum.
  if (sum != used_.end()) {
    Subtract(entry->second.amounts, &sum->second);
    if (sum->second == Amounts()) used_.erase(sum);
  }
  entries_.erase(entry);
}

Amounts TenantLedger::UsedBy(const std::string& tenant) const {
  const auto sum = used_.find(tenant);
  return sum == used_.end() ? Amounts() : sum->second;
}

Amounts TenantLedger::FreeOf(const std::string& tenant) const {
  const Amounts used = UsedBy(tenant);
  const Amounts& limits = limits_.Of(tenant);
  Amounts free;
  for (const Resource& resource : Resources()) {
    free.*resource.amount = Left(used.*resource.amount, limits.*resource.amount);
  }
  return free;
}

std::vector<TenantUse> TenantLedger::Uses() const {
  std::set<std::string> tenants;
  for (const auto& [tenant, used] : used_) tenants.insert(tenant);
  for (const auto& [tenant, row] : limits_.tenants) tenants.insert(tenant);
  std::vector<TenantUse> uses;
  for (const std::string& tenant : tenants) uses.push_back(UseOf(tenant));
  return uses;
}

std::vector<Holding> TenantLedger::OfKind(Holding::Kind kind) const {
  std::vector<Holding> holdings;
  for (const auto& [holding, entry] : entries_) {
    if (holding.kind == kind) holdings.push_back(holding);
  }
  return holdings;
}

}  // namespace ballast::server
