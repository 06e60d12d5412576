// The extension module ballast._core: a thin layer over the C++ client for ballast/session.py and
// ballast/control.py.
// Comes from: ballast/session.py, which owns the waiting loops and all policy. Goes to:
// ballast/client.h. Tensors are (name, shape, dtype, group, aliases), memory is integer addresses;
// the Python side keeps that memory alive until the call has ended. The GIL is released wherever a
// call can block. Thread safety: one Python thread at a time, except abort().
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "client/python/binding/admin.h"
#include "client/python/binding/convert.h"
#include "client/python/binding/exit_leave.h"
#include "client/python/binding/gpu.h"
#include "client/python/binding/job_options.h"
#include "client/python/binding/operation.h"
#include "client/python/binding/pause_queue.h"
#include "client/python/binding/policy.h"
#include "client/python/binding/rendezvous.h"
#include "client/python/binding/safetensors.h"

namespace ballast::python {
namespace nb = nanobind;
namespace {

// Python's handle on a client. A process forked from the owner must not run the destructor: the
// threads it would join exist only in the parent.
class Connection {
 public:
  explicit Connection(std::shared_ptr<client::Client> client) : client_(std::move(client)) {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() {
    if (getpid() != pid_) {
      new std::shared_ptr<client::Client>(std::move(client_));
      return;
    }
    nb::gil_scoped_release release;
    client_.reset();
  }

  const std::shared_ptr<client::Client>& client() const { return client_; }

 private:
  std::shared_ptr<client::Client> client_;
  const pid_t pid_ = getpid();
};

// Attaches on a thread of its own; Stop ends that. `weights` stay valid until the operation's end.
Operation* Attach(client::JobOptions options, std::vector<client::Tensor> tensors,
                  std::vector<client::TensorBuffers> weights, std::optional<client::Gpu> gpu) {
  auto stop = std::make_shared<std::atomic<bool>>(false);
  options.should_stop = [stop] { return stop->load(); };
  const auto attach = [options = std::move(options), tensors = std::move(tensors),
                       weights = std::move(weights),
                       gpu = std::move(gpu)](OperationResult* result) {
    auto attached = client::Client::Attach(options, tensors, weights, gpu);
    if (!attached.ok()) return attached.status();
    result->client = *std::move(attached);
    // The caller has given up: the others must not take this trainer for a present one.
    if (options.should_stop()) result->client->Abort();
    return absl::OkStatus();
  };
  return new Operation(attach, std::move(stop));
}

Operation* StartAttach(client::JobOptions options, const PauseQueue& pauses,
                       const std::vector<TensorTuple>& tensors, const Addresses& weights,
                       const Gpu* gpu) {
  options.on_pause = pauses.Listener();
  return Attach(std::move(options), ToTensors(tensors), ToBuffers({}, weights),
                gpu == nullptr ? std::nullopt : std::optional(gpu->options()));
}

Operation* StartExtend(const Connection& self, const std::vector<TensorTuple>& tensors,
                       const Addresses& weights, const std::string& init,
                       const std::vector<uint32_t>& schedule_groups) {
  return new Operation(
      [client = self.client(), specs = ToTensors(tensors), buffers = ToBuffers({}, weights),
       mode = ToEnum<client::InitMode>("init", init), schedule_groups](OperationResult*) {
        return client->Extend(specs, buffers, mode, schedule_groups);
      });
}

// `arrays`: one list per state array, of an address per tensor.
Operation* StartFetchState(const Connection& self, const std::vector<Addresses>& arrays) {
  std::vector<client::StateBuffers> buffers(arrays.empty() ? 0 : arrays.front().size());
  for (const Addresses& addresses : arrays) {
    for (size_t i = 0; i < buffers.size(); ++i) {
      buffers[i].arrays.push_back(reinterpret_cast<float*>(addresses.at(i)));
    }
  }
  return new Operation(
      [client = self.client(), buffers = std::move(buffers)](OperationResult* result) {
        return client->FetchState(buffers, &result->tensor_step);
      });
}

Operation* StartFetchWeights(const Connection& self, const Addresses& weights) {
  return new Operation([client = self.client(), buffers = ToBuffers({}, weights)](
                           OperationResult*) { return client->FetchWeights(buffers); });
}

Operation* StartSnapshot(const Connection& self, const std::string& name, uint32_t keep) {
  return new Operation([client = self.client(), name, keep](OperationResult* result) {
    const absl::StatusOr<uint64_t> round = client->Snapshot(name, keep);
    if (!round.ok()) return round.status();
    result->round = *round;
    return absl::OkStatus();
  });
}

Operation* StartLeave(const Connection& self) {
  return new Operation([client = self.client()](OperationResult*) { return client->Leave(); });
}

// True when the call has ended well; raises its error.
bool WaitOperation(Operation& self, double timeout_s) {
  bool ended = false;
  {
    nb::gil_scoped_release release;
    ended = self.Wait(Milliseconds(timeout_s));
  }
  if (ended && !self.status().ok()) Raise(self.status());
  return ended;
}

template <typename One>
nb::object Listed(const std::vector<One>& values) {
  nb::list list;
  for (const One& value : values) list.append(ToDict(value));
  return list;
}

nb::object Result(const Operation& self) {
  if (self.result().jobs.has_value()) return Listed(*self.result().jobs);
  if (self.result().snapshots.has_value()) return Listed(*self.result().snapshots);
  if (self.result().client != nullptr) {
    return nb::cast(new Connection(self.result().client), nb::rv_policy::take_ownership);
  }
  if (self.result().id.has_value()) return ToBytes(*self.result().id);
  if (self.result().roll_call.has_value()) return ToDict(*self.result().roll_call);
  if (self.result().round != 0) return nb::cast(self.result().round);
  return nb::cast(self.result().tensor_step);
}

// `user_state` is committed with the round. `loss_scale`: of the gradients; 0: the job's static
// one.
void BeginStep(const Connection& self, const std::vector<client::Hyper>& hyper,
               const Addresses& grads, const Addresses& weights, const nb::bytes& user_state,
               double loss_scale, uint32_t sums_of) {
  const std::vector<client::TensorBuffers> buffers = ToBuffers(grads, weights);
  std::string state(user_state.c_str(), user_state.size());
  absl::Status status;
  {
    nb::gil_scoped_release release;
    self.client()->SetSumsOf(sums_of);
    status = self.client()->SetUserState(std::move(state));
    if (status.ok()) status = self.client()->BeginStep(hyper, buffers, loss_scale);
  }
  if (!status.ok()) Raise(status);
}

// Like BeginStep, without gradients: the weights become the service's.
void BeginUpload(const Connection& self, const Addresses& weights, const nb::bytes& user_state) {
  const std::vector<client::TensorBuffers> buffers = ToBuffers({}, weights);
  std::string state(user_state.c_str(), user_state.size());
  absl::Status status;
  {
    nb::gil_scoped_release release;
    status = self.client()->SetUserState(std::move(state));
    if (status.ok()) status = self.client()->BeginUpload(buffers);
  }
  if (!status.ok()) Raise(status);
}

// Like BeginUpload, with a plane of the state at `bits` (0: the tensor has none) and, when
// `tensor_step` is not empty, step counts and perhaps the schedule's position.
void BeginStateUpload(const Connection& self, uint32_t array, bool low, const Addresses& bits,
                      const Addresses& weights, std::vector<uint64_t> tensor_step,
                      uint64_t opt_step, std::optional<int64_t> schedule_index,
                      const nb::bytes& user_state) {
  const client::StateUpload upload{array, low, std::move(tensor_step), opt_step, schedule_index};
  const std::vector<client::TensorBuffers> buffers = ToBuffers(bits, weights);
  std::string state(user_state.c_str(), user_state.size());
  absl::Status status;
  {
    nb::gil_scoped_release release;
    status = self.client()->SetUserState(std::move(state));
    if (status.ok()) status = self.client()->BeginStateUpload(upload, buffers);
  }
  if (!status.ok()) Raise(status);
}

// The report's fields, or None when the round still runs after `timeout_s`; raises its error.
nb::object WaitStep(const Connection& self, double timeout_s) {
  client::RoundReport report;
  absl::StatusOr<bool> ended = false;
  {
    nb::gil_scoped_release release;
    ended = self.client()->Wait(Milliseconds(timeout_s), &report);
  }
  if (!ended.ok()) Raise(ended.status());
  if (!*ended) return nb::none();
  return ToDict(report);
}

// Properties, which do not change the client.
void DefineProperties(nb::class_<Connection>* connection) {
  (*connection)
      .def_prop_ro("state_arrays",
                   [](const Connection& self) { return self.client()->state_arrays(); })
      .def_prop_ro("resumed", [](const Connection& self) { return self.client()->resumed(); })
      .def_prop_ro("user_state",
                   [](const Connection& self) {
                     const std::string state = self.client()->user_state();
                     return nb::bytes(state.data(), state.size());
                   })
      .def("policy", [](const Connection& self) { return ToDict(self.client()->policy()); })
      .def_prop_ro("opt_step", [](const Connection& self) { return self.client()->opt_step(); })
      .def_prop_ro("world", [](const Connection& self) { return self.client()->world(); })
      .def_prop_ro("epoch", [](const Connection& self) { return self.client()->epoch(); })
      .def("dealt", [](const Connection& self) { return ToList(self.client()->dealt()); })
      .def_prop_ro("round", [](const Connection& self) { return self.client()->round(); })
      .def_prop_ro("job_id", [](const Connection& self) { return self.client()->job_id(); })
      .def_prop_ro("server_count",
                   [](const Connection& self) { return self.client()->server_count(); });
}

void DefineRendezvous(nb::class_<Connection>* connection) {
  (*connection)
      .def(
          "start_rendezvous",
          [](const Connection& self, const std::string& act, const MeetingTuple& meeting,
             const nb::bytes& id, const std::string& why) {
            return StartRendezvous(self.client(), act, meeting, id, why);
          },
          nb::arg("act"), nb::arg("meeting"), nb::arg("id"), nb::arg("why"))
      .def(
          "set_doing",
          [](const Connection& self, uint8_t phase, uint32_t bucket, uint64_t round) {
            SetDoing(self.client().get(), phase, bucket, round);
          },
          nb::arg("phase"), nb::arg("bucket"), nb::arg("round"));
}

void DefineConnection(nb::module_& module) {
  nb::class_<Connection> connection(module, "Connection");
  connection
      .def("begin_step", &BeginStep, nb::arg("hyper"), nb::arg("grads"), nb::arg("weights"),
           nb::arg("user_state"), nb::arg("loss_scale"), nb::arg("sums_of"))
      .def("begin_upload", &BeginUpload, nb::arg("weights"), nb::arg("user_state"))
      .def("begin_state_upload", &BeginStateUpload, nb::kw_only(), nb::arg("array"), nb::arg("low"),
           nb::arg("bits"), nb::arg("weights"), nb::arg("tensor_step"), nb::arg("opt_step"),
           nb::arg("schedule_index").none(), nb::arg("user_state"))
      .def("wait", &WaitStep, nb::arg("timeout_s"))
      .def("start_extend", &StartExtend, nb::arg("tensors"), nb::arg("weights"), nb::arg("init"),
           nb::arg("schedule_groups"))
      .def("start_fetch_state", &StartFetchState, nb::arg("arrays"))
      .def("start_fetch_weights", &StartFetchWeights, nb::arg("weights"))
      .def("start_snapshot", &StartSnapshot, nb::arg("name"), nb::arg("keep"))
      .def("start_leave", &StartLeave)
      .def(
          "leave_at_exit",
          [](const Connection& self, const std::string& job, const std::string& told,
             double timeout_s) { LeaveAtExit(self.client(), job, told, Milliseconds(timeout_s)); },
          nb::arg("job"), nb::arg("told"), nb::arg("timeout_s"))
      .def("abort",
           [](const Connection& self) {
             nb::gil_scoped_release release;
             self.client()->Abort();
           })
      .def("counters", [](const Connection& self) { return ToDict(self.client()->counters()); });
  DefineProperties(&connection);
  DefineRendezvous(&connection);
}

}  // namespace

NB_MODULE(_core, module) {
  module.doc() =
      "Ballast's C++ client for ballast/session.py; see client/python/binding/module.cc.";
  // Objects still alive at exit are normal (an optimizer in a global), not a leak to report.
  nb::set_leak_warnings(false);
  client::DisableLockOrderChecks();
  nb::class_<Operation>(module, "Operation")
      .def("wait", &WaitOperation, nb::arg("timeout_s"))
      .def("stop", &Operation::Stop)
      .def("result", &Result);
  DefineConnection(module);
  DefineSafetensors(module);
  DefineAdmin(module);
  nb::class_<PauseQueue>(module, "PauseQueue").def(nb::init<>()).def("take", [](PauseQueue& self) {
    return ToList(self.Take());
  });
  nb::class_<Gpu>(module, "Gpu")
      .def(nb::init<std::string, int, int64_t>(), nb::arg("library"), nb::arg("ordinal"),
           nb::arg("pinned_bytes"))
      .def("set_stream", &Gpu::SetStream);
  DefineJobOptions(module);
  module.def("start_attach", &StartAttach, nb::kw_only(), nb::arg("options"), nb::arg("pauses"),
             nb::arg("tensors"), nb::arg("weights"), nb::arg("gpu").none() = nb::none());
}

}  // namespace ballast::python
