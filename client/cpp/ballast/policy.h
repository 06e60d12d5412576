// Options that a job may leave to the service, a dynamic loss scale and a schedule of learning
// rates, and their state after each round. docs/schedules.md has the formulas.
// Comes from: JobOptions; the servers. Goes to: every trainer, with the same bits.
// C++17-clean. Thread safety: plain values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "ballast/types.h"

namespace ballast::client {

using ::ballast::Gradients;
using ::ballast::PolicyProfile;

// A loss scale that the service moves: ds_config fp16, with DeepSpeed's names and defaults.
struct DynamicLossScale {
  int64_t initial_scale_power = 16;     // the first scale is 2 to this power
  int64_t loss_scale_window = 1000;     // clean rounds between two growths
  int64_t hysteresis = 2;               // the scale falls on this overflow after a growth
  bool consecutive_hysteresis = false;  // every clean round refills the hysteresis
  double min_loss_scale = 1;            // an overflow here halts the job
};

// An argument of a schedule: a number (a flag is 0 or 1), one number per schedule group, or the
// word of warmup_type.
using ScheduleValue = std::variant<double, std::vector<double>, std::string>;

// A schedule of learning rates: type and arguments of ds_config's scheduler block, by DeepSpeed's
// names. Arguments left out have DeepSpeed's defaults.
struct ScheduleOptions {
  std::string
      type;  // WarmupLR, WarmupDecayLR, WarmupCosineLR, LRRangeTest or OneCycle; empty: none
  std::map<std::string, ScheduleValue> arguments;
  // Per group of the job (Tensor::group): the schedule group that it belongs to, which is torch's
  // group. Empty: each group is one of its own.
  std::vector<uint32_t> groups;
  // Number of schedule groups: as many as lists have values. 0: one more than the largest in
  // `groups`. Larger where a group has no tensor yet.
  uint32_t group_count = 0;
};

// The policies of a job that the service runs.
struct PolicyOptions {
  // The service moves the loss scale; then JobOptions::loss_scale is 1, and nonfinite is kSkip.
  std::optional<DynamicLossScale> loss_scale;
  // Of the learning rates. The rates that rounds give are then the groups' own, where it starts.
  ScheduleOptions schedule;
  PolicyProfile profile = PolicyProfile::kExact;
};

// Rates of a group in a round. Betas are 0 where the optimizer has none.
struct GroupRates {
  double lr = 0;
  double beta1 = 0;
  double beta2 = 0;
};

// State of loss scale and schedule before the next round. The same on all trainers. A job without a
// dynamic loss scale or a schedule has only loss_scale, last_skipped and why_skipped.
struct Policy {
  double loss_scale = 1;        // multiply the next loss by it, and give it to BeginStep
  int64_t schedule_index = -1;  // position of the next round; -1 at the beginning
  // Rounds that overflowed so far, without those at the minimum of the scale, which halt the job.
  uint64_t skipped_rounds = 0;
  // Per group, the rates that the newest round with gradients used, or would have used. Empty
  // before the first one; a group added since has no entry.
  std::vector<GroupRates> rates;
  // Whether that round was skipped or halted, and why: tensor, index and slot of the first
  // non-finite value. The text is empty where no server knows it any more.
  bool last_skipped = false;
  std::string why_skipped;
  // The scaler's state, for programs that write a checkpoint of it.
  int64_t scaler_iteration = 0;  // rounds with gradients so far, without the halted ones
  int64_t last_overflow = -1;    // of these the newest that overflowed; -1: none
  int64_t hysteresis_left = 1;   // at 1 the next overflow lowers the scale
};

}  // namespace ballast::client
