// Plans from another server are checked whole before anything is allocated.
#include "server/round/job_plan.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "server/extents/contributions.h"
#include "tests/server/round/plans.h"

namespace ballast::server {
namespace {

using testing::MakePlan;

// A change that makes a good plan wrong, and a word of the refusal.
struct SpoiltPlan {
  const char* expect;
  std::function<void(JobPlan*)> spoil;
};

const SpoiltPlan kSpoiltPlans[] = {
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

TEST(JobPlanTest, APlanThatContradictsItselfIsRefusedByName) {
  const JobPlan good = MakePlan({300, 200}, 2, {1, 4});
  ASSERT_TRUE(CheckPlan(good).ok()) << CheckPlan(good);
  for (const SpoiltPlan& c : kSpoiltPlans) {
    JobPlan plan = good;
    c.spoil(&plan);
    const absl::Status status = CheckPlan(plan);
    EXPECT_EQ(ReasonOf(status), Reason::kBadSpec) << c.expect;
    EXPECT_NE(std::string(status.message()).find(c.expect), std::string::npos) << status;
    EXPECT_FALSE(PlanMemory(plan, 1, {1 << 30}, 4).ok());
  }
}

TEST(JobPlanTest, AVariableWorldMayHaveEmptySeatsAndIsPlannedByWhoIsThere) {
  JobPlan plan = MakePlan({300, 200}, 3, {1});
  const uint64_t three = PlanMemory(plan, 1, {1 << 30}, 4)->total();
  plan.epoch.members.erase(plan.epoch.members.begin());
  plan.epoch.contributors = AllContribute(plan.epoch.members, 1);
  EXPECT_FALSE(CheckPlan(plan).ok());
  plan.spec.variable_world = true;
  EXPECT_TRUE(CheckPlan(plan).ok()) << CheckPlan(plan);
  EXPECT_LT(PlanMemory(plan, 1, {1 << 30}, 4)->total(), three);
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
    const uint32_t most = WorldMax(plan, 1, {budget}, 4);
    ASSERT_GE(most, 2u);
    EXPECT_TRUE(PlanMemory(with(most), 1, {budget}, 4).ok()) << most;
    EXPECT_FALSE(PlanMemory(with(most + 1), 1, {budget}, 4).ok()) << most;
  }
  EXPECT_EQ(WorldMax(plan, 1, {0}, 4), 2u) << "those that are there stay";
}

TEST(JobPlanTest, ReducedGradientsTakeTheRegistersOfOneTrainerWhateverTheWorld) {
  const auto with = [](uint32_t world, Gradients gradients) {
    JobPlan plan = MakePlan({3000}, world, {1});
    plan.spec.gradients = gradients;
    plan.epoch.contributors = ContributorsOf(plan.spec, plan.epoch.members);
    return *PlanMemory(plan, 1, {1 << 30}, 4);
  };
  const MemoryPlan alone = with(1, Gradients::kLocal);
  const MemoryPlan four = with(4, Gradients::kReduced);
  const uint64_t cells = 24 * 64;  // of a slot: 24 extents
  EXPECT_EQ(four.sum_bytes, 0u);
  EXPECT_EQ(four.register_bytes, alone.register_bytes + 3 * cells);
  EXPECT_EQ(four.window_extents, 24u) << "the step reads the registers, so all of them stay";
  EXPECT_GT(with(4, Gradients::kLocal).register_bytes, 3 * alone.register_bytes);
}

TEST(JobPlanTest, AWorldOfReducedGradientsMayBecomeLarger) {
  JobPlan plan = MakePlan({3000}, 2, {1});
  plan.spec.variable_world = true;
  const uint32_t local = WorldMax(plan, 1, {777'777}, 4);
  plan.spec.gradients = Gradients::kReduced;
  EXPECT_GT(WorldMax(plan, 1, {777'777}, 4), 2 * local);
}

// 40 extents of a page of state each, of one trainer.
JobPlan PlanOfFortyExtents(Durability durability, Device device) {
  JobPlan plan = MakePlan({40 * 128}, 1, {1});
  plan.spec.durability = durability;
  plan.spec.device = device;
  return plan;
}

TEST(JobPlanTest, StateThatDoesNotFitLivesOnNvmeIfItMay) {
  constexpr uint64_t kPage = 4096;  // of an extent
  struct Case {
    Durability durability;
    Device device;
    uint64_t room;  // pages of state
    uint32_t nvme_extents;
    bool fits;
  };
  using enum Device;
  const Case cases[] = {
      {Durability::kPower, kAuto, 40, 0, true},  {Durability::kPower, kAuto, 39, 39, true},
      {Durability::kProcess, kAuto, 4, 4, true}, {Durability::kPower, kAuto, 3, 0, false},
      {Durability::kPower, kNvme, 40, 40, true}, {Durability::kPower, kNvme, 100, 40, true},
      {Durability::kPower, kNvme, 10, 10, true}, {Durability::kPower, kCpu, 39, 0, false},
      {Durability::kPower, kCpu, 40, 0, true},   {Durability::kNone, kAuto, 39, 0, false},
      {Durability::kNone, kNvme, 39, 0, false},  {Durability::kNone, kNvme, 40, 0, true},
  };
  for (const Case& c : cases) {
    const JobPlan plan = PlanOfFortyExtents(c.durability, c.device);
    const MemoryRoom room{.bytes = 1 << 30, .state_bytes = c.room * kPage};
    const auto memory = PlanMemory(plan, 1, room, 4);
    const std::string what = absl::StrCat("durability ", static_cast<int>(c.durability),
                                          ", device ", static_cast<int>(c.device), ", ", c.room);
    ASSERT_EQ(memory.ok(), c.fits) << what << ": " << memory.status();
    if (!c.fits) {
      EXPECT_EQ(ReasonOf(memory.status()), Reason::kOverBudget) << what;
      continue;
    }
    EXPECT_EQ(memory->nvme_extents, c.nvme_extents) << what;
    EXPECT_EQ(memory->state_bytes, (c.nvme_extents == 0 ? 40 : c.nvme_extents) * kPage) << what;
    EXPECT_EQ(memory->nvme_bytes, c.nvme_extents == 0 ? 0 : 40 * kPage) << what;
  }
}

TEST(JobPlanTest, TheRestOfTheBudgetIsCache) {
  const JobPlan plan = PlanOfFortyExtents(Durability::kPower, Device::kNvme);
  const uint64_t all = PlanMemory(plan, 1, {1 << 30}, 4)->total();
  const auto less = PlanMemory(plan, 1, {all - 7 * 4096}, 4);
  ASSERT_TRUE(less.ok()) << less.status();
  EXPECT_EQ(less->nvme_extents, 33u);
  EXPECT_EQ(LeastMemory(plan, 1, 4).state_bytes, 4u * 4096);
  EXPECT_LE(LeastMemory(plan, 1, 4).total(), less->total());
}

TEST(JobPlanTest, RegistersTakeTheBytesThatThePlanNames) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    JobPlan plan = MakePlan({2 * 128}, 1, {1});
    plan.spec.tensors[0].dtype = dtype;
    const auto memory = PlanMemory(plan, 1, {1 << 30}, 4);
    ASSERT_TRUE(memory.ok()) << memory.status();
    const Layout layout = *LayoutOfSpec(plan.spec);
    Contributions registers(layout, {0, 1}, plan.epoch, memory->window_extents);
    char* at[2];  // neighbours in the pool
    for (const uint32_t extent : {0u, 1u}) {
      LoggedExtent logged;
      logged.extent = extent;
      logged.dtype = dtype;
      at[extent] = *registers.Restore(layout, {0}, logged);
    }
    // Each register takes 64 bytes in addition to its payload.
    EXPECT_EQ(memory->register_bytes, 2 * (static_cast<uint64_t>(std::abs(at[1] - at[0])) + 64));
    EXPECT_GE(static_cast<uint64_t>(std::abs(at[1] - at[0])), 128 * DTypeBytes(dtype));
  }
}

// One group per parameter, as layer-wise learning rates want it: each group has an extent of its
// own, and that takes only the size of its content.
TEST(JobPlanTest, AnExtentOfFewElementsTakesFewBytes) {
  constexpr uint32_t kGroups = 465;
  constexpr uint64_t kPage = 4096;
  JobPlan plan = MakePlan(std::vector<int64_t>(kGroups, 2), 2, {1});
  plan.spec.extent_elements = 1 << 20;
  plan.spec.tile_elements = 1 << 16;
  plan.spec.group_count = kGroups;
  for (uint32_t i = 0; i < kGroups; ++i) plan.spec.tensors[i].group = i;
  plan.owner.assign(kGroups, 1);
  plan.epoch.contributors = AllContribute(plan.epoch.members, kGroups);
  const auto memory = PlanMemory(plan, 1, {.bytes = 64 << 20}, 4);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(memory->state_bytes, kGroups * kPage);
  EXPECT_EQ(memory->register_bytes, kGroups * 2 * (kPage + 64));
  EXPECT_EQ(memory->sum_bytes, kGroups * kPage);
  EXPECT_EQ(memory->weight_bytes, kGroups * 2 * uint64_t{64});
  plan.spec.durability = Durability::kPower;
  plan.spec.device = Device::kNvme;
  EXPECT_EQ(LeastMemory(plan, 1, 4).state_bytes, 4 * kPage) << "on NVMe";
}

// Buffers are used again for others of their size only, so a window of one extent may come to
// have one of each.
TEST(JobPlanTest, AWindowIsPlannedForTheLargestExtentsAndForEachSize) {
  constexpr uint64_t kPage = 4096;
  JobPlan plan = MakePlan({2048 * 3 + 1024}, 2, {1});  // fp32: three of two pages, one of one
  plan.spec.extent_elements = 2048;
  plan.owner.assign(4, 1);
  const auto registers = [&](uint32_t window) {
    return LeastMemory(plan, 1, window).register_bytes - 4 * 2 * uint64_t{64};
  };
  EXPECT_EQ(registers(1), 2 * (2 + 1) * kPage);
  EXPECT_EQ(registers(2), 2 * (4 + 1) * kPage);
  EXPECT_EQ(registers(4), 2 * (6 + 1) * kPage);
  const uint64_t three = LeastMemory(plan, 1, 3).total();
  EXPECT_EQ(PlanMemory(plan, 1, {.bytes = three}, 1)->window_extents, 4u) << "takes no more";
  EXPECT_EQ(PlanMemory(plan, 1, {.bytes = three - 1}, 1)->window_extents, 2u);
}

TEST(JobPlanTest, TheLeastOfAJobHasTheSmallestWindow) {
  const JobPlan plan = MakePlan({40 * 128}, 2, {1});
  const MemoryPlan least = LeastMemory(plan, 1, 4);
  EXPECT_EQ(least.window_extents, 4u);
  const auto tight = PlanMemory(plan, 1, {least.total()}, 4);
  ASSERT_TRUE(tight.ok()) << tight.status();
  EXPECT_EQ(tight->total(), least.total());
  const absl::Status none = PlanMemory(plan, 1, {0}, 4).status();
  EXPECT_THAT(std::string(none.message()),
              ::testing::HasSubstr(absl::StrCat("needs ", least.total(), " bytes")));
}

TEST(JobPlanTest, AJobThatRunsKeepsItsTier) {
  const JobPlan plan = PlanOfFortyExtents(Durability::kPower, Device::kAuto);
  const auto nvme = PlanMemory(plan, 1, {.bytes = 1 << 30, .nvme_extents = 6}, 4);
  ASSERT_TRUE(nvme.ok()) << nvme.status();
  EXPECT_EQ(nvme->nvme_extents, 6u);
  const MemoryRoom tight{.bytes = 1 << 30, .state_bytes = 39 * 4096, .nvme_extents = 0};
  EXPECT_EQ(ReasonOf(PlanMemory(plan, 1, tight, 4).status()), Reason::kOverBudget);
}

}  // namespace
}  // namespace ballast::server
