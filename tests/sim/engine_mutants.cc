// SimEngine: what its mutants do wrong beyond leaving something out. See mutants.h.
// Thread safety: one thread.
#include <algorithm>
#include <cstring>
#include <utility>

#include "server/optim/scalars.h"
#include "server/round/scalar_bits.h"
#include "tests/sim/engine.h"

namespace ballast::sim {

using namespace server;  // NOLINT: the room that this file mirrors.

void SimEngine::SpoilRecovered(Mutant mutant, const JobPlan& plan, Recovered* recovered) {
  Restored& fsm = recovered->fsm;
  if (mutant == Mutant::kForgetPresence && fsm.prepared.has_value()) {
    fsm.prepared->present.assign(fsm.prepared->present.size(), true);
  } else if (mutant == Mutant::kForgetTensorStep) {
    std::fill(fsm.tensor_step.begin(), fsm.tensor_step.end(), 0);
  } else if (mutant == Mutant::kForgetSetSteps && fsm.last_prepared.has_value()) {
    if (fsm.last_prepared->steps.has_value()) fsm.tensor_step = fsm.last_prepared->tensor_step;
  } else if (mutant == Mutant::kForgetPolicy) {
    fsm.policy = PolicyState();
    fsm.policy.loss_scale = plan.spec.loss_scale;
  } else if (mutant == Mutant::kForgetOpenExtents) {
    recovered->open_extents.clear();
  }
}

void SimEngine::SumInOrderOfArrival(ReduceWork* work) {
  const std::vector<uint32_t>& slots = fsm_.Contributors(work->extent);
  const std::vector<uint32_t>& arrived = arrivals_[work->extent];
  if (arrived.size() != slots.size() || work->input.runs != nullptr) return;
  const std::vector<const void*> in_slot_order = work->grads;
  for (size_t i = 0; i < arrived.size(); ++i) {
    const auto at = std::find(slots.begin(), slots.end(), arrived[i]) - slots.begin();
    work->grads[i] = in_slot_order[static_cast<size_t>(at)];
  }
}

void SimEngine::AddPushAgain(uint32_t slot, const FrameRefused& refused, const Payload& payload) {
  if (refused.reason != Reason::kDuplicate || stray_) return;
  FrameHeader frame{.slot = slot, .round = refused.round};
  frame.extent = refused.extent;
  frame.offset_bytes = refused.offset_bytes;
  frame.kind = FrameKind::kGradient;
  if (fsm_.layout().extents()[frame.extent].dtype != DType::kF32) return;
  std::string bytes = payload.ToString();
  for (size_t at = 0; at + 4 <= bytes.size(); at += 4) {
    float value = 0;
    std::memcpy(&value, bytes.data() + at, 4);
    value += value;
    std::memcpy(bytes.data() + at, &value, 4);
  }
  (void)contributions_.Store(fsm_.layout(), frame, Payload::FromString(std::move(bytes)));
}

// The lead takes silence for consent: norms of 0 and its own digest.
void SimEngine::InventVotes(const SendVote& effect) {
  const JobPlan& plan = fsm_.plan();
  if (plan.servers.front() != deps_.server_id) return;
  for (const uint32_t server : plan.servers) {
    if (server == deps_.server_id) continue;
    Vote vote{.server = server, .contributor_digest = effect.vote.contributor_digest};
    for (uint32_t extent = 0; extent < plan.owner.size(); ++extent) {
      if (plan.owner[extent] == server) vote.norms.push_back({extent, 0});
    }
    After(0, EventKind::kStrand, [this, round = effect.round, vote] {
      Feed(VoteInput{fsm_.plan().epoch.epoch, round, vote});
    });
  }
}

}  // namespace ballast::sim
