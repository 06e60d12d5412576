// Jobs, snapshots and forks for Python. See admin.h.
#include "client/python/binding/admin.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ballast/admin.h"
#include "client/python/binding/convert.h"
#include "client/python/binding/operation.h"

namespace ballast::python {
namespace nb = nanobind;
namespace {

using Endpoints = std::vector<std::string>;

// Runs `call` of an Admin; Stop ends it.
template <typename Call>
Operation* Start(Endpoints endpoints, const SecurityTuple& security, double patience_s,
                 double time_scale, Call call) {
  auto stop = std::make_shared<std::atomic<bool>>(false);
  client::AdminOptions options;
  options.endpoints = std::move(endpoints);
  options.security = ToSecurity(security);
  options.patience = Milliseconds(patience_s);
  options.time_scale = time_scale;
  options.should_stop = [stop] { return stop->load(); };
  return new Operation([admin = client::Admin(std::move(options)), call = std::move(call)](
                           OperationResult* result) { return call(admin, result); },
                       std::move(stop));
}

Operation* StartJobs(Endpoints endpoints, const SecurityTuple& security, double patience_s,
                     double time_scale) {
  return Start(std::move(endpoints), security, patience_s, time_scale,
               [](const client::Admin& admin, OperationResult* result) {
                 auto jobs = admin.Jobs();
                 if (jobs.ok()) result->jobs = *std::move(jobs);
                 return jobs.status();
               });
}

Operation* StartDeleteJob(Endpoints endpoints, const SecurityTuple& security, double patience_s,
                          double time_scale, const std::string& job, bool force) {
  return Start(std::move(endpoints), security, patience_s, time_scale,
               [job, force](const client::Admin& admin, OperationResult*) {
                 return admin.DeleteJob(job, force);
               });
}

Operation* StartSnapshots(Endpoints endpoints, const SecurityTuple& security, double patience_s,
                          double time_scale, const std::string& job) {
  return Start(std::move(endpoints), security, patience_s, time_scale,
               [job](const client::Admin& admin, OperationResult* result) {
                 auto snapshots = admin.Snapshots(job);
                 if (snapshots.ok()) result->snapshots = *std::move(snapshots);
                 return snapshots.status();
               });
}

Operation* StartDeleteSnapshot(Endpoints endpoints, const SecurityTuple& security,
                               double patience_s, double time_scale, const std::string& job,
                               const std::string& snapshot) {
  return Start(std::move(endpoints), security, patience_s, time_scale,
               [job, snapshot](const client::Admin& admin, OperationResult*) {
                 return admin.DeleteSnapshot(job, snapshot);
               });
}

Operation* StartRestore(Endpoints endpoints, const SecurityTuple& security, double patience_s,
                        double time_scale, const std::string& job, const std::string& snapshot,
                        const std::string& as, uint32_t world, bool share) {
  const client::RestoreOptions options{job, snapshot, as, world, share};
  return Start(std::move(endpoints), security, patience_s, time_scale,
               [options](const client::Admin& admin, OperationResult* result) {
                 auto made = admin.Restore(options);
                 if (made.ok()) result->jobs.emplace({*std::move(made)});
                 return made.status();
               });
}

}  // namespace

void DefineAdmin(nb::module_& module) {
  const auto endpoints = nb::arg("endpoints");
  const auto security = nb::arg("security");
  const auto patience = nb::arg("patience_s");
  const auto scale = nb::arg("time_scale");
  module.def("start_jobs", &StartJobs, endpoints, security, patience, scale);
  module.def("start_delete_job", &StartDeleteJob, endpoints, security, patience, scale,
             nb::arg("job"), nb::arg("force"));
  module.def("start_snapshots", &StartSnapshots, endpoints, security, patience, scale,
             nb::arg("job"));
  module.def("start_delete_snapshot", &StartDeleteSnapshot, endpoints, security, patience, scale,
             nb::arg("job"), nb::arg("snapshot"));
  module.def("start_restore", &StartRestore, endpoints, security, patience, scale, nb::arg("job"),
             nb::arg("snapshot"), nb::arg("new"), nb::arg("world"), nb::arg("share"));
}

}  // namespace ballast::python
