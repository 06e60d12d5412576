// DeepSpeed's universal checkpoints, as DeepSpeed 0.19.8 loads them on any number of ranks:
//
//   <export>/latest_universal                                  text: TAG
//   <export>/TAG/zero/<name>/fp32.pt, exp_avg.pt, ..., step.pt  one parameter's state
//   <export>/TAG/zero/optimizer_state.pt                        groups, and their steps
//   <export>/TAG/*mp_rank_00_model_states.pt                    shapes, counters, the schedule
//
// Servers write the folders of parameters, the home the rest, latest_universal last.
// docs/formats/universal.md. Source: deepspeed/checkpoint/ds_to_universal.py and
// universal_checkpoint.py, runtime/engine.py of 0.19.8.
// Comes from: PlanExport, WriteExport, Exports. Goes to: TorchFile.
// Thread safety: pure functions; the Write functions block on the disk, and start threads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/io/file.h"
#include "common/job/job_spec.h"
#include "common/job/policy_state.h"
#include "server/exchange/export_plan.h"
#include "server/exchange/export_writer.h"

namespace ballast::server {

// Fills ExportShard::universal. `round`: the first one of a job made from it. Errors as PlanExport.
absl::Status PlanUniversal(const JobSpec& spec, uint64_t round, bool torch_optimizer,
                           ExportShard* shard);
// Of all files of the shard.
uint64_t UniversalBytes(const ExportShard& shard);

// Whether all tensors of a group have taken the same number of steps, as DeepSpeed has it.
// UNIMPLEMENTED UNSUPPORTED, naming two tensors that differ.
absl::Status CheckUniversalSteps(const JobSpec& spec, const std::vector<uint64_t>& tensor_step);

// Writes the folders of a shard; they survive power loss at the return. Errors as WriteExport.
absl::Status WriteUniversal(FileSystem* fs, const std::string& directory, const ExportShard& shard,
                            const ExportSource& source);

// Contents of the checkpoint other than the parameters.
struct UniversalMoment {
  const JobSpec& spec;
  uint64_t round = 0;  // the first one of a job made from it
  const PolicyState& policy;
  const std::vector<uint64_t>& tensor_step;
  bool torch_optimizer = false;
};
// All files but the parameters', latest_universal last.
std::vector<LastFile> UniversalRest(const UniversalMoment& moment);
// Writes them in this order. Errors as FileSystem's.
absl::Status WriteUniversalRest(FileSystem* fs, const std::string& directory,
                                const UniversalMoment& moment);

}  // namespace ballast::server
