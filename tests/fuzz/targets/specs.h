// A good job, as a message, for the targets that begin from one.
// Comes from: the targets in this folder. Goes to: nothing. Thread safety: pure functions.
#pragma once

#include "ballast/v1/control.pb.h"
#include "ballast/v1/peer.pb.h"

namespace ballast::fuzz {

// Two groups; the tensors have dimensions whose product is near no limit.
inline v1::JobSpec GoodSpec() {
  v1::JobSpec spec;
  spec.set_name("job");
  spec.set_world(2);
  spec.set_optimizer(v1::OPTIMIZER_KIND_ADAMW);
  spec.set_group_count(2);
  spec.set_loss_scale(1);
  spec.set_durability(v1::DURABILITY_POWER);
  spec.set_tile_elements(64);
  spec.set_extent_elements(128);
  spec.set_reduction_id(1);
  spec.set_formula_id(1);
  for (int i = 0; i < 3; ++i) {
    v1::TensorSpec* tensor = spec.add_tensors();
    tensor->set_name("t" + std::to_string(i));
    tensor->add_shape(16);
    tensor->add_shape(1 + 4 * i);
    tensor->set_dtype(i == 1 ? v1::DTYPE_BF16 : v1::DTYPE_F32);
    tensor->set_group(i == 2 ? 1 : 0);
    tensor->add_aliases("alias" + std::to_string(i));
  }
  return spec;
}

// GoodSpec with a dynamic loss scale and a schedule.
inline v1::JobSpec GoodScheduledSpec() {
  v1::JobSpec spec = GoodSpec();
  v1::LossScaler* scaler = spec.mutable_loss_scaler();
  scaler->set_initial_scale_power(16);
  scaler->set_loss_scale_window(1000);
  scaler->set_hysteresis(2);
  scaler->set_min_loss_scale(1);
  spec.mutable_schedule()->set_type("WarmupLR");
  v1::ScheduleArgument* argument = spec.mutable_schedule()->add_arguments();
  argument->set_name("warmup_num_steps");
  argument->add_value(10);
  return spec;
}

}  // namespace ballast::fuzz
