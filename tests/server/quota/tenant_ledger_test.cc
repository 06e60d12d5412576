// The ledger alone: limits, refunds to the byte, all or nothing, and a comparison with a model.
#include "server/quota/tenant_ledger.h"

#include <map>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast::server {
namespace {

using ::testing::ElementsAre;

using Kind = Holding::Kind;

QuotaTable Table(const Amounts& others, const std::map<std::string, Amounts>& tenants = {}) {
  return {.others = others, .tenants = tenants};
}

Amounts Limit(uint64_t Amounts::*resource, uint64_t limit) {
  Amounts limits = NoLimits();
  limits.*resource = limit;
  return limits;
}

TEST(TenantLedgerTest, WithoutLimitsNothingIsRefused) {
  TenantLedger ledger;
  EXPECT_FALSE(ledger.Take({Kind::kStored, 1}, "a", {.jobs = 1, .disk_bytes = uint64_t{1} << 62}));
  EXPECT_EQ(ledger.FreeOf("a"), NoLimits());
}

TEST(TenantLedgerTest, ATenantGetsItsLimitAndNotOneMore) {
  TenantLedger ledger;
  ledger.SetLimits(Table(Limit(&Amounts::disk_bytes, 100)));
  EXPECT_FALSE(ledger.Take({Kind::kStored, 1}, "a", {.disk_bytes = 60}));
  const auto lacks = ledger.Take({Kind::kStored, 2}, "a", {.disk_bytes = 41});
  ASSERT_TRUE(lacks.has_value());
  EXPECT_STREQ(lacks->resource->key, "disk");
  EXPECT_EQ(lacks->used, 60u);
  EXPECT_EQ(lacks->limit, 100u);
  EXPECT_EQ(lacks->more, 41u);
  EXPECT_FALSE(ledger.Take({Kind::kStored, 2}, "a", {.disk_bytes = 40}));
  // Another tenant has a limit of its own.
  EXPECT_FALSE(ledger.Take({Kind::kStored, 3}, "b", {.disk_bytes = 100}));
}

TEST(TenantLedgerTest, ARefusalForOneResourceTakesNoneOfTheOthers) {
  TenantLedger ledger;
  ledger.SetLimits(Table(Limit(&Amounts::seats, 3)));
  EXPECT_TRUE(ledger.Take({Kind::kOpen, 1}, "a", {.jobs = 1, .seats = 4, .dram_bytes = 9}));
  EXPECT_EQ(ledger.UsedBy("a"), Amounts());
  EXPECT_THAT(ledger.Uses(), ElementsAre());
}

TEST(TenantLedgerTest, AnEntryThatGrowsTakesOnlyTheDifference) {
  TenantLedger ledger;
  ledger.SetLimits(Table(Limit(&Amounts::dram_bytes, 10)));
  EXPECT_FALSE(ledger.Take({Kind::kOpen, 1}, "a", {.dram_bytes = 8}));
  EXPECT_FALSE(ledger.Take({Kind::kOpen, 1}, "a", {.dram_bytes = 10}));
  const auto lacks = ledger.Take({Kind::kOpen, 1}, "a", {.dram_bytes = 11});
  ASSERT_TRUE(lacks.has_value());
  EXPECT_EQ(lacks->more, 1u);
  EXPECT_EQ(ledger.UsedBy("a").dram_bytes, 10u);
}

TEST(TenantLedgerTest, ALimitBelowTheUseKeepsItAndGrantsNothingNew) {
  TenantLedger ledger;
  EXPECT_FALSE(ledger.Take({Kind::kOpen, 1}, "a", {.seats = 4, .dram_bytes = 8}));
  ledger.SetLimits(Table(Limit(&Amounts::seats, 2)));
  EXPECT_EQ(ledger.UsedBy("a").seats, 4u);
  EXPECT_EQ(ledger.FreeOf("a").seats, 0u);
  EXPECT_TRUE(ledger.Take({Kind::kOpen, 2}, "a", {.seats = 1}));
  EXPECT_TRUE(ledger.Take({Kind::kOpen, 1}, "a", {.seats = 5}));
  // A change that takes no more seats is still allowed, and a smaller world is fine above the
  // limit.
  EXPECT_FALSE(ledger.Take({Kind::kOpen, 1}, "a", {.seats = 3, .dram_bytes = 9}));
  EXPECT_EQ(ledger.UsedBy("a"), (Amounts{.seats = 3, .dram_bytes = 9}));
}

TEST(TenantLedgerTest, ANoteIsEnteredAboveTheLimit) {
  TenantLedger ledger;
  ledger.SetLimits(Table(Limit(&Amounts::jobs, 1)));
  ledger.Note({Kind::kStored, 1}, "a", {.jobs = 1});
  ledger.Note({Kind::kStored, 2}, "a", {.jobs = 1});
  EXPECT_EQ(ledger.UsedBy("a").jobs, 2u);
  EXPECT_TRUE(ledger.Take({Kind::kStored, 3}, "a", {.jobs = 1}));
}

TEST(TenantLedgerTest, ATenantsRowTakesThePlaceOfTheDefaultRow) {
  TenantLedger ledger;
  ledger.SetLimits(Table(Limit(&Amounts::jobs, 1), {{"a", Limit(&Amounts::jobs, 2)}}));
  for (const uint64_t job : {1u, 2u}) {
    EXPECT_FALSE(ledger.Take({Kind::kStored, job}, "a", {.jobs = 1})) << job;
  }
  EXPECT_TRUE(ledger.Take({Kind::kStored, 3}, "a", {.jobs = 1}));
  EXPECT_FALSE(ledger.Take({Kind::kStored, 4}, "b", {.jobs = 1}));
  EXPECT_TRUE(ledger.Take({Kind::kStored, 5}, "b", {.jobs = 1}));
}

TEST(TenantLedgerTest, ATenantWithARowIsListedBeforeItUsesAnything) {
  TenantLedger ledger;
  const Amounts row = Limit(&Amounts::jobs, 2);
  ledger.SetLimits(Table(NoLimits(), {{"b", row}}));
  ledger.Note({Kind::kAttach, 7}, "a", {.waiting_attaches = 1});
  EXPECT_THAT(ledger.Uses(), ElementsAre(TenantUse{"a", {.waiting_attaches = 1}, NoLimits()},
                                         TenantUse{"b", {}, row}));
}

// --- Against a model ----------------------------------------------------------------------------

// A server's work for its tenants, in terms of entries; each number is random.
class LedgerAndModel {
 public:
  explicit LedgerAndModel(uint64_t seed) : random_(seed) { NewLimits(); }

  void Step() {
    const Holding holding{static_cast<Kind>(Below(7)), Below(6), ""};
    switch (Below(8)) {
      case 0:
        return NewLimits();
      case 1:  // The server ends and starts again: jobs on disk are found, all else is gone.
        return Restart();
      case 2:
      case 3:
        ledger_.Give(holding);
        model_.erase(holding);
        return;
      case 4:  // Existing use: an epoch with more trainers, a job that ran.
        return Note(holding);
      default:
        return Take(holding);
    }
  }

  void Check() const {
    for (const std::string& tenant : kTenants) {
      ASSERT_EQ(ledger_.UsedBy(tenant), SumOf(tenant)) << tenant;
    }
  }

  uint64_t taken() const { return taken_; }
  uint64_t refused() const { return refused_; }

 private:
  struct Entry {
    std::string tenant;
    Amounts amounts;
  };
  inline static const std::vector<std::string> kTenants = {"a", "b", "default"};

  uint64_t Below(uint64_t bound) { return random_() % bound; }
  const std::string& Tenant() { return kTenants[Below(kTenants.size())]; }
  Amounts Some(uint64_t most) {
    Amounts amounts;
    for (const Resource& resource : Resources()) {
      if (Below(2) == 0) amounts.*resource.amount = Below(most);
    }
    return amounts;
  }
  void NewLimits() {
    table_ = QuotaTable();
    for (const Resource& resource : Resources()) {
      if (Below(3) != 0) table_.others.*resource.amount = Below(300);
    }
    if (Below(2) == 0) table_.tenants["a"] = Some(400);
    ledger_.SetLimits(table_);
  }
  Amounts SumOf(const std::string& tenant) const {
    Amounts sum;
    for (const auto& [holding, entry] : model_) {
      if (entry.tenant != tenant) continue;
      for (const Resource& r : Resources()) sum.*r.amount += entry.amounts.*r.amount;
    }
    return sum;
  }
  void Restart() {
    std::erase_if(model_, [](const auto& entry) {
      const Kind kind = entry.first.kind;
      return kind == Kind::kOpen || kind == Kind::kAttach || kind == Kind::kReserved;
    });
    ledger_ = TenantLedger();
    ledger_.SetLimits(table_);
    for (const auto& [holding, entry] : model_) ledger_.Note(holding, entry.tenant, entry.amounts);
  }
  void Note(const Holding& holding) {
    const Entry entry{Tenant(), Some(100)};
    ledger_.Note(holding, entry.tenant, entry.amounts);
    model_[holding] = entry;
  }
  // The model says by itself whether the sum with the new entry is allowed.
  void Take(const Holding& holding) {
    const Entry entry{Tenant(), Some(100)};
    const auto before = model_.find(holding);
    const bool same = before != model_.end() && before->second.tenant == entry.tenant;
    const Amounts had = same ? before->second.amounts : Amounts();
    const Amounts sum = SumOf(entry.tenant);
    const Amounts& limits = table_.Of(entry.tenant);
    bool allowed = true;
    for (const Resource& r : Resources()) {
      const uint64_t after = sum.*r.amount - had.*r.amount + entry.amounts.*r.amount;
      if (after > sum.*r.amount && after > limits.*r.amount) allowed = false;
    }
    const bool refused = ledger_.Take(holding, entry.tenant, entry.amounts).has_value();
    ASSERT_EQ(refused, !allowed);
    if (allowed) model_[holding] = entry;
    ++(allowed ? taken_ : refused_);
  }

  std::mt19937_64 random_;
  QuotaTable table_;
  TenantLedger ledger_;
  std::map<Holding, Entry> model_;
  uint64_t taken_ = 0;
  uint64_t refused_ = 0;
};

TEST(TenantLedgerTest, TakesAndRefundsAsItsModelDoes) {
  uint64_t taken = 0, refused = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    LedgerAndModel run(seed);
    for (int step = 0; step < 500 && !HasFatalFailure(); ++step) {
      run.Step();
      run.Check();
    }
    if (HasFatalFailure()) return;
    taken += run.taken();
    refused += run.refused();
  }
  EXPECT_GT(taken, 1000u);
  EXPECT_GT(refused, 1000u);
}

}  // namespace
}  // namespace ballast::server
