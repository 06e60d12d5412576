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
      {"slot 0 has no member", [](JobPlan* p) { p->epoch.members[0].slot = 1; }},
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

}  // namespace
}  // namespace ballast::server
