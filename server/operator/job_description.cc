#include "server/operator/job_description.h"

namespace ballast::server {

uint64_t ParametersOf(const JobSpec& spec) {
  uint64_t parameters = 0;
  for (const LayoutTensor& tensor : LayoutTensors(spec.tensors)) parameters += tensor.elements;
  return parameters;
}

DurableJob Describe(const JobPlan& plan, const std::string& state, const JobStore* store) {
  DurableJob job{.name = plan.spec.name, .tenant = plan.tenant, .job = plan.job, .state = state};
  job.durability = plan.spec.durability;
  job.world = plan.spec.world;
  job.epoch = plan.epoch.epoch;
  job.round = plan.resting ? plan.resting_round : plan.epoch.start_round;
  job.parameters = ParametersOf(plan.spec);
  job.tensors = static_cast<uint32_t>(plan.spec.tensors.size());
  job.groups = plan.spec.group_count;
  job.servers = plan.servers;
  if (store == nullptr) return job;
  for (const uint32_t server : plan.servers) job.disk_bytes += store->DiskBytes(plan, server);
  return job;
}

}  // namespace ballast::server
