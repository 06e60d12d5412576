// The options of a job that its specification has as the trainer gives them. An option for the
// servers is one field here; JobOptions and JobSpec have it from this struct.
// Comes from: client::JobOptions. Goes to: JobSpec, and over the wire (proto/convert/job_convert.h)
// to the servers. C++17-clean. Thread safety: a plain value.
#pragma once

#include <cstdint>

#include "ballast/types.h"

namespace ballast {

struct JobSettings {
  uint32_t world = 1;  // number of trainers; of a variable world those that the job starts with
  // Trainers may come and go while the job runs. Then `world` is the number of trainers that the
  // job starts with. A process whose slot is empty, or beyond the slots of the job, joins with
  // `resume`. The world changes between two rounds, by one epoch; the mean of a round is over the
  // trainers that take part in it. The job continues without a trainer that leaves, or whose lease
  // (`timing.lease` of the servers) runs out. False: the world is fixed, and rounds wait for a lost
  // trainer. Needs a durable job. All trainers give the same value.
  bool variable_world = false;
  double max_grad_norm = 0;  // global 2-norm clip; 0: off. ds_config gradient_clipping
  double loss_scale = 1;     // static; gradients arrive multiplied by it
  NonfinitePolicy nonfinite = NonfinitePolicy::kSkip;
  // Rounds in a row that may be skipped; the step of one more ends with NONFINITE. 0: no limit.
  uint32_t max_consecutive_skips = 100;
  Gradients gradients = Gradients::kLocal;
  uint32_t tile_elements = 65536;      // multiple of 64
  uint32_t extent_elements = 1048576;  // multiple of tile_elements
  // Servers without a storage.data_dir refuse every level but kNone.
  Durability durability = Durability::kPower;
  Device device = Device::kAuto;  // the value of the first trainer counts
};

}  // namespace ballast
