// Plans from another server are checked whole before anything is allocated.
#include "server/round/job_plan.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "common/base/reason.h"
#include "tests/server/round/plans.h"

namespace ballast::server {
namespace {

using testing::MakePlan;

TEST(JobPlanTest, APlanThatContradictsItselfIsRefusedByName) {
  const JobPlan good = MakePlan({300, 200}, 2, {1, 4});
  ASSERT_TRUE(CheckPlan(good).ok()) << CheckPlan(good);
  struct Case {
    const char* expect;
    std::function<void(JobPlan*)> spoil;
  };
  const Case cases[] = {
      {"server ids", [](JobPlan* p) { p->servers.clear(); }},
      {"server ids",
       [](JobPlan* p) {
         p->servers = {4, 1};
       }},
      {"server ids",
       [](JobPlan* p) {
         p->servers = {1, 1};
       }},
      {"3 owners of 4 extents", [](JobPlan* p) { p->owner.pop_back(); }},
      {"owner 9", [](JobPlan* p) { p->owner[0] = 9; }},
      {"members", [](JobPlan* p) { p->epoch.members.pop_back(); }},
      {"out of order", [](JobPlan* p) { p->epoch.members[0].slot = 1; }},
      {"fill the world", [](JobPlan* p) { p->epoch.members[1].slot = 2; }},
      {"too high", [](JobPlan* p) { p->epoch.members[1].slot = kSeatsMax; }},
      {"0 contributor sets of 1", [](JobPlan* p) { p->epoch.contributors.clear(); }},
      {"contributor set", [](JobPlan* p) { p->epoch.contributors[0].slots.clear(); }},
      {"contributor set",
       [](JobPlan* p) {
         p->epoch.contributors[0].slots = {0, 2};
       }},
      {"contributor set",
       [](JobPlan* p) {
         p->epoch.contributors[0].slots = {1, 0};
       }},
      {"contributor set", [](JobPlan* p) { p->epoch.contributors[0].divisor = 0; }},
  };
  for (const Case& c : cases) {
    JobPlan plan = good;
    c.spoil(&plan);
    const absl::Status status = CheckPlan(plan);
    EXPECT_EQ(ReasonOf(status), Reason::kBadSpec) << c.expect;
    EXPECT_NE(std::string(status.message()).find(c.expect), std::string::npos) << status;
    EXPECT_FALSE(PlanMemory(plan, 1, 1 << 30, 4).ok());
  }
}

TEST(JobPlanTest, AVariableWorldMayHaveEmptySeatsAndIsPlannedByWhoIsThere) {
  JobPlan plan = MakePlan({300, 200}, 3, {1});
  const uint64_t three = PlanMemory(plan, 1, 1 << 30, 4)->total();
  plan.epoch.members.erase(plan.epoch.members.begin());
  plan.epoch.contributors = AllContribute(plan.epoch.members, 1);
  EXPECT_FALSE(CheckPlan(plan).ok());
  plan.spec.variable_world = true;
  EXPECT_TRUE(CheckPlan(plan).ok()) << CheckPlan(plan);
  EXPECT_LT(PlanMemory(plan, 1, 1 << 30, 4)->total(), three);
  plan.epoch.contributors[0].slots = {0, 1};
  EXPECT_FALSE(CheckPlan(plan).ok()) << "seat 0 is empty";
}

TEST(JobPlanTest, AsManyTrainersFitAsPlanMemoryAdmits) {
  JobPlan plan = MakePlan({3000}, 2, {1});
  plan.spec.variable_world = true;
  const auto with = [&plan](uint32_t world) {
    JobPlan grown = plan;
    for (uint32_t slot = 2; slot < world; ++slot) grown.epoch.members.push_back({slot, slot});
    grown.epoch.contributors = AllContribute(grown.epoch.members, 1);
    return grown;
  };
  for (const uint64_t budget : {uint64_t{400'000}, uint64_t{777'777}, uint64_t{2'500'000}}) {
    const uint32_t most = WorldMax(plan, 1, budget, 4);
    ASSERT_GE(most, 2u);
    EXPECT_TRUE(PlanMemory(with(most), 1, budget, 4).ok()) << most;
    EXPECT_FALSE(PlanMemory(with(most + 1), 1, budget, 4).ok()) << most;
  }
  EXPECT_EQ(WorldMax(plan, 1, 0, 4), 2u) << "those that are there stay";
}

}  // namespace
}  // namespace ballast::server
