#include "tests/sim/oracle.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/bytes/crc32c.h"

namespace ballast::sim {
namespace {

uint64_t Bits(double value) { return std::bit_cast<uint64_t>(value); }

// The first element that differs in its bits; SIZE_MAX when none does.
size_t FirstDifference(const std::vector<float>& ours, const float* theirs, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (std::bit_cast<uint32_t>(ours[i]) != std::bit_cast<uint32_t>(theirs[i])) return i;
  }
  return SIZE_MAX;
}

}  // namespace

// --- Epochs -------------------------------------------------------------------------------------

void Oracle::OnEpoch(const server::EpochRecord& record) {
  world_->Note(uint64_t{record.epoch} << 40 | record.start_round << 8 | record.world());
  if (record.epoch != newest().epoch + 1) {
    world_->Red(absl::StrCat("epoch ", record.epoch, " is written after epoch ", newest().epoch));
    return;
  }
  if (record.world() < plan_->epoch.min_world) {
    world_->Red(absl::StrCat("epoch ", record.epoch, " has ", record.world(), " members, and not ",
                             plan_->epoch.min_world, " or more"));
    return;
  }
  if (damage_ && record.start_round < committed_) {
    committed_ = record.start_round;
    for (const uint32_t server : plan_->servers) OnForgotten(server, record.start_round);
  }
  // Who has had version v has seen round v - 1 decided: that round is not run again.
  if (record.start_round < committed_ || record.start_round > committed_ + 1) {
    world_->Red(absl::StrCat("epoch ", record.epoch, " starts with round ", record.start_round,
                             "; the newest version of anybody is ", committed_));
    return;
  }
  epochs_[record.epoch] = record;
  reference_.OnEpoch(record);
}

void Oracle::OnAdopted(uint32_t server, const server::EpochRecord& record, bool damaged) {
  uint32_t& newest_here = epoch_[server];
  if (record.epoch < newest_here && !damaged) {
    world_->Red(absl::StrCat("server ", server, " goes back from epoch ", newest_here, " to ",
                             record.epoch));
  }
  newest_here = std::max(newest_here, record.epoch);
  const auto known = epochs_.find(record.epoch);
  const bool same =
      known != epochs_.end() && known->second.start_round == record.start_round &&
      known->second.world() == record.world() &&
      std::all_of(record.members.begin(), record.members.end(), [&](const server::Member& m) {
        return known->second.Holds(m.slot, m.incarnation);
      });
  if (!same) {
    world_->Red(absl::StrCat("server ", server, " has another record of epoch ", record.epoch));
  }
}

uint32_t Oracle::EpochOf(uint64_t round) const {
  for (auto epoch = epochs_.rbegin(); epoch != epochs_.rend(); ++epoch) {
    if (epoch->second.start_round <= round) return epoch->first;
  }
  return 0;
}

// --- Rounds -------------------------------------------------------------------------------------

void Oracle::OnVote(uint32_t server, uint32_t epoch, uint64_t round, const Vote& vote,
                    bool durable) {
  world_->Note(round << 8 | server);
  if (!durable) {
    world_->Red(absl::StrCat("server ", server, " votes on round ", round,
                             " before its PREPARE is durable"));
  }
  if (epoch < EpochOf(round)) return;  // Of a round that another epoch runs again.
  CheckNotForgotten(server, epoch, round);
  size_t owned = 0;
  for (const uint32_t owner : plan_->owner) owned += owner == server ? 1 : 0;
  if (vote.norms.size() != owned) {
    world_->Red(
        absl::StrCat("server ", server, " votes with ", vote.norms.size(), " norms of ", owned));
    return;
  }
  for (const ExtentNorm& norm : vote.norms) {
    const double expected = reference_.SumOfSquares(round, norm.extent);
    const bool same = Bits(norm.sumsq) == Bits(expected) ||
                      (!(norm.sumsq == norm.sumsq) && !(expected == expected));
    if (same) continue;
    world_->Red(absl::StrCat("server ", server, " votes on round ", round, " with sum of squares ",
                             norm.sumsq, " of extent ", norm.extent, ", not ", expected));
    return;
  }
}

void Oracle::OnForgotten(uint32_t server, uint64_t round) {
  Forgotten& forgotten = forgotten_[server] = {round, {}};
  for (const auto& [process, trainer] : trainers_) {
    if (trainer.version > round) forgotten.witnesses[process] = trainer;
  }
}

// Members that know the round as decided are asked to run it again, and must end.
void Oracle::CheckNotForgotten(uint32_t server, uint32_t epoch, uint64_t round) {
  const server::EpochRecord* const record = Record(epoch);
  const Forgotten& forgotten = forgotten_[server];
  for (const auto& [process, witness] : forgotten.witnesses) {
    const auto& [who, version] = witness;
    const bool lives = trainers_.count(process) != 0;
    const bool member = record != nullptr && record->Holds(who.slot, who.incarnation);
    if (round < forgotten.round || round >= version || !lives || !member) continue;
    world_->Red(absl::StrCat("server ", server, " has forgotten round ", round,
                             " and votes on it again, though slot ", who.slot,
                             " lives and knows version ", version));
  }
}

void Oracle::Knows(uint32_t process, uint64_t version) {
  committed_ = std::max(committed_, version);
  const auto it = trainers_.find(process);
  if (it != trainers_.end()) it->second.version = std::max(it->second.version, version);
}

bool Oracle::SameDecision(uint64_t round, bool applied, double grad_norm, double clip_coef,
                          uint64_t nonfinite, const PolicyState& policy) {
  const Decision& expected = reference_.DecisionOf(round);
  const bool same_norm = !expected.applied || Bits(expected.grad_norm) == Bits(grad_norm);
  return expected.applied == applied && same_norm && expected.clip_coef == clip_coef &&
         expected.nonfinite == nonfinite && expected.policy.opt_step == policy.opt_step &&
         expected.policy.loss_scale == policy.loss_scale;
}

void Oracle::OnDecision(uint32_t server, uint32_t epoch, uint64_t round, const Decision& decision) {
  world_->Note(round << 16 | server);
  if (epoch != EpochOf(round)) {
    world_->Red(absl::StrCat("server ", server, " decides round ", round, " in epoch ", epoch,
                             ", which is run in epoch ", EpochOf(round)));
    return;
  }
  const Decision& expected = reference_.DecisionOf(round);
  if (SameDecision(round, decision.applied, decision.grad_norm, decision.clip_coef,
                   decision.nonfinite, decision.policy) &&
      decision.policy == expected.policy && decision.grad_scale == expected.grad_scale &&
      decision.halted == expected.halted && decision.first_nonfinite == expected.first_nonfinite) {
    return;
  }
  world_->Red(absl::StrCat("server ", server, " decides round ", round, " otherwise: applied ",
                           decision.applied, " norm ", decision.grad_norm, " opt_step ",
                           decision.policy.opt_step, ", expected ", expected.applied, " ",
                           expected.grad_norm, " ", expected.policy.opt_step));
}

void Oracle::OnApplied(uint32_t server, uint64_t round) {
  version_[server] = std::max(version_[server], round + 1);
  committed_ = std::max(committed_, round + 1);
  for (const uint32_t other : plan_->servers) {
    const uint64_t theirs = std::max<uint64_t>(version_[other], 1);
    if (theirs + 1 < round + 1) {
      world_->Red(absl::StrCat("server ", server, " is at version ", round + 1, ", server ", other,
                               " has never been beyond ", theirs));
    }
  }
}

void Oracle::OnRecovered(uint32_t server, const server::RoundFsm& fsm, bool damaged) {
  const uint64_t round = fsm.round();
  world_->Note(round << 24 | server);
  const bool prepared =
      fsm.phase() != server::Phase::kIdle && fsm.phase() != server::Phase::kCollect;
  version_[server] = std::max(version_[server], round);
  // Before anybody had version c, everybody had prepared round c - 1 for good.
  const bool forgot = round < committed_ && !(prepared && round + 1 == committed_);
  // The vote on a round that it still has is given again.
  OnForgotten(server, prepared ? round + 1 : round);
  if (forgot && !damaged) {
    world_->Red(absl::StrCat("server ", server, " is back at round ", round,
                             prepared ? ", prepared" : ", not prepared",
                             "; somebody has had version ", committed_));
  }
  if (fsm.init_missing() == 0 && fsm.tensor_steps() != reference_.TensorSteps(round)) {
    world_->Red(
        absl::StrCat("server ", server, " is back at round ", round, " with other step counts"));
  }
}

void Oracle::OnResult(uint32_t process, const RoundResult& result) {
  Knows(process, result.round + 1);
  PolicyState policy;
  policy.opt_step = result.opt_step;
  policy.loss_scale = result.loss_scale;
  const Decision& expected = reference_.DecisionOf(result.round);
  if (SameDecision(result.round, result.applied, result.grad_norm, result.clip_coef,
                   result.nonfinite, policy) &&
      result.halted == expected.halted && result.first_nonfinite == expected.first_nonfinite &&
      result.consecutive_skips == expected.policy.consecutive_skips &&
      (result.policy.has_value() ? *result.policy == expected.policy
                                 : expected.policy.version == 1)) {
    return;
  }
  world_->Red(absl::StrCat("trainer ", process, " is told another result of round ", result.round));
}

void Oracle::OnWeights(uint32_t process, const FrameHeader& frame, const std::string& bytes) {
  Knows(process, frame.round);
  world_->Note(Crc32c(bytes.data(), bytes.size()));
  const std::vector<char>& expected = reference_.Weights(frame.round, frame.extent);
  const bool same =
      frame.offset_bytes + bytes.size() <= expected.size() &&
      std::memcmp(expected.data() + frame.offset_bytes, bytes.data(), bytes.size()) == 0;
  if (same) return;
  world_->Red(absl::StrCat("trainer ", process, " gets wrong weights of version ", frame.round,
                           ", extent ", frame.extent));
}

void Oracle::OnTrainerRound(uint32_t slot, uint64_t round,
                            const std::vector<std::vector<char>>& weights) {
  for (uint32_t e = 0; e < weights.size(); ++e) {
    if (weights[e] == reference_.Weights(round + 1, e)) continue;
    world_->Red(
        absl::StrCat("slot ", slot, " ends round ", round, " with wrong weights of extent ", e));
    return;
  }
}

void Oracle::OnSteps(uint32_t slot, uint64_t version, const std::vector<uint64_t>& tensor_step) {
  if (tensor_step == reference_.TensorSteps(version)) return;
  world_->Red(absl::StrCat("slot ", slot, " is told other step counts of version ", version));
}

void Oracle::OnArrays(uint32_t slot, uint64_t version,
                      const std::vector<std::vector<float>>& arrays) {
  for (uint32_t extent = 0; extent < arrays.size(); ++extent) {
    const ExtentState& expected = reference_.State(version, extent);
    const size_t elements = expected[0].size();
    for (size_t a = 0; a < expected.size(); ++a) {
      const size_t differs =
          FirstDifference(expected[a], arrays[extent].data() + a * elements, elements);
      if (differs == SIZE_MAX) continue;
      world_->Red(absl::StrCat("slot ", slot, " gets another state of version ", version,
                               ": extent ", extent, " element ", differs, " of array ", a));
      return;
    }
  }
}

// --- Snapshots ----------------------------------------------------------------------------------

void Oracle::OnImage(const std::string& whose, uint64_t round, uint32_t extent,
                     const float* image) {
  const ExtentState& expected = reference_.State(round, extent);
  const size_t elements = expected[0].size();
  for (size_t at = 0; at < elements; at += layout_->tile_elements()) {
    const size_t count = std::min<size_t>(layout_->tile_elements(), elements - at);
    for (size_t a = 0; a < expected.size(); ++a) {
      const auto from = expected[a].begin() + static_cast<ptrdiff_t>(at);
      const std::vector<float> ours(from, from + static_cast<ptrdiff_t>(count));
      const size_t differs = FirstDifference(ours, image + expected.size() * at + a * count, count);
      if (differs == SIZE_MAX) continue;
      world_->Red(absl::StrCat(whose, " has another state of version ", round, ": extent ", extent,
                               " element ", at + differs, " of array ", a));
      return;
    }
  }
  world_->Note(round << 32 | extent);
}

void Oracle::OnRoundBefore(const std::string& whose, uint64_t round,
                           const server::CapturedRound& before) {
  const Decision& decision = before.decision.decision;
  const Decision& expected = reference_.DecisionOf(round - 1);
  const bool same_round = before.decision.round + 1 == round && before.prepared.round + 1 == round;
  if (!same_round || decision.applied != expected.applied || decision.policy != expected.policy ||
      decision.grad_scale != expected.grad_scale) {
    world_->Red(absl::StrCat(whose, " says that round ", round - 1, " ended otherwise"));
  } else if (server::StepsAfter(before.prepared, decision) != reference_.TensorSteps(round)) {
    world_->Red(absl::StrCat(whose, " has other step counts of version ", round));
  }
}

}  // namespace ballast::sim
