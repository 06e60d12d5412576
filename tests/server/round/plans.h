// Small job plans for the tests of the round room.
// Thread safety: pure functions.
#pragma once

#include <utility>
#include <vector>

#include "server/round/round_types.h"

namespace ballast::server::testing {

inline uint64_t IncarnationOf(uint32_t slot) { return 1000 + slot; }

// `sizes[i]` elements in tensor i, all fp32 in group 0; tile 64, extent 128.
inline JobPlan MakePlan(const std::vector<int64_t>& sizes, uint32_t world,
                        const std::vector<uint32_t>& servers) {
  JobPlan plan;
  plan.job = 77;
  plan.spec.name = "test";
  plan.spec.world = world;
  plan.spec.tile_elements = 64;
  plan.spec.extent_elements = 128;
  for (size_t i = 0; i < sizes.size(); ++i) {
    plan.spec.tensors.push_back({"t" + std::to_string(i), {sizes[i]}, DType::kF32, 0, {}});
  }
  plan.servers = servers;
  const auto layout = Layout::Build(LayoutTensors(plan.spec.tensors), 64, 128);
  for (const uint32_t index : PlanOwners(*layout, static_cast<uint32_t>(servers.size()))) {
    plan.owner.push_back(servers[index]);
  }
  ContributorSet all;
  all.divisor = world;
  for (uint32_t s = 0; s < world; ++s) {
    plan.epoch.members.push_back({s, IncarnationOf(s)});
    all.slots.push_back(s);
  }
  plan.epoch.contributors = {all};
  return plan;
}

// `plan` with one tensor more, in one extent of the first server, from `round` on.
inline JobPlan Grown(JobPlan plan, int64_t elements, uint64_t round) {
  plan.tensors_before = static_cast<uint32_t>(plan.spec.tensors.size());
  plan.grown_round = round;
  plan.spec.tensors.push_back({"late", {elements}, DType::kF32, plan.spec.group_count++, {}});
  plan.epoch.contributors.push_back(plan.epoch.contributors[0]);
  plan.owner.push_back(plan.servers[0]);
  ++plan.layout_version;
  return plan;
}

inline Layout LayoutOf(const JobPlan& plan) {
  return *Layout::Build(LayoutTensors(plan.spec.tensors), plan.spec.tile_elements,
                        plan.spec.extent_elements);
}

// LAMB in place of AdamW.
inline void UseLamb(JobSpec* spec) {
  spec->optimizer = OptimizerKind::kLamb;
  spec->options = {1, 0};
}
inline JobPlan WithLamb(JobPlan plan) {
  UseLamb(&plan.spec);
  return plan;
}

// AdamW's hyper-parameters, followed by LAMB's two limits.
inline const Hyper kLambHyperOfTests = {1e-2, 0.9, 0.999, 1e-8, 0.1, 10.0, 0.01};

inline RoundBegin MakeBegin(uint64_t round, std::vector<bool> presence = {}) {
  return {round, 1, {{1e-2, 0.9, 0.999, 1e-8, 0.1}}, std::move(presence), ""};
}

// How a round of the plan's job begins.
inline RoundBegin BeginOf(const JobPlan& plan, uint64_t round, std::vector<bool> presence = {}) {
  RoundBegin begin = MakeBegin(round, std::move(presence));
  if (plan.spec.optimizer == OptimizerKind::kLamb) begin.hyper = {kLambHyperOfTests};
  return begin;
}

inline FrameHeader MakeFrame(const JobPlan& plan, FrameKind kind, uint32_t slot, uint64_t round,
                             uint32_t extent, ChunkRange range) {
  return {.job = plan.job,
          .epoch = 1,
          .slot = slot,
          .round = round,
          .extent = extent,
          .incarnation = IncarnationOf(slot),
          .offset_bytes = range.offset_bytes,
          .length_bytes = range.length_bytes,
          .dtype = DType::kF32,
          .kind = kind,
          .crc32c = 5};
}

}  // namespace ballast::server::testing
