// Conversions of the extension module. See convert.h.
#include "client/python/binding/convert.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ballast/error.h"
#include "common/tensor/dtype.h"
#include "common/text/names.h"

namespace ballast::python {
namespace nb = nanobind;
namespace {

[[noreturn]] void RaiseFields(const std::string& code, const std::string& reason,
                              const std::string& message, const client::ErrorInfo& info) {
  nb::object error =
      nb::module_::import_("ballast.errors")
          .attr("from_status")(code, reason, message, info.job, info.round, info.slot, info.server);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

client::DType FromTorchName(absl::string_view name) {
  if (name == "float32") return client::DType::kF32;
  if (name == "bfloat16") return client::DType::kBF16;
  return name == "float16" ? client::DType::kF16 : kNoDType;
}

const char* KindName(client::Pause::Kind kind) {
  switch (kind) {
    case client::Pause::Kind::kLost:
      return "lost";
    case client::Pause::Kind::kWaiting:
      return "waiting";
    case client::Pause::Kind::kReplacing:
      return "replacing";
    case client::Pause::Kind::kReplaced:
      return "replaced";
    case client::Pause::Kind::kTrainerLost:
      return "trainer_lost";
    case client::Pause::Kind::kTrainerBack:
      return "trainer_back";
    case client::Pause::Kind::kBack:
      break;
  }
  return "back";
}

}  // namespace

void Raise(const absl::Status& status) {
  const client::ErrorInfo info = client::GetErrorInfo(status);
  const std::string reason = info.reason_name.empty() ? "UNSPECIFIED" : info.reason_name;
  RaiseFields(absl::StatusCodeToString(status.code()), reason, std::string(status.message()), info);
}

void RaiseBadArgument(const std::string& message) {
  RaiseFields("INVALID_ARGUMENT", "BAD_ARGUMENT", message, client::ErrorInfo());
}

client::Security ToSecurity(const SecurityTuple& security) {
  const auto& [ca, certificate, key, token_file] = security;
  return {ca, certificate, key, token_file};
}

std::vector<client::Tensor> ToTensors(const std::vector<TensorTuple>& tuples) {
  std::vector<client::Tensor> tensors;
  tensors.reserve(tuples.size());
  for (const auto& [name, shape, dtype, group, aliases] : tuples) {
    client::Tensor tensor;
    tensor.name = name;
    tensor.shape = shape;
    tensor.dtype = FromTorchName(dtype);
    if (tensor.dtype == kNoDType) {
      RaiseBadArgument(absl::StrCat("tensor '", name, "' has dtype '", dtype,
                                    "'; float32, bfloat16 and float16 are supported"));
    }
    tensor.group = group;
    tensor.aliases = aliases;
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

std::vector<client::TensorBuffers> ToBuffers(const Addresses& grads, const Addresses& weights) {
  if (!grads.empty() && grads.size() != weights.size()) {
    RaiseBadArgument(absl::StrCat(grads.size(), " gradients for ", weights.size(), " weights"));
  }
  std::vector<client::TensorBuffers> buffers(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    buffers[i].weight = reinterpret_cast<void*>(weights[i]);
    if (!grads.empty()) buffers[i].grad = reinterpret_cast<const void*>(grads[i]);
  }
  return buffers;
}

std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000.0));
}

nb::dict ToDict(const client::RoundReport& report) {
  nb::dict fields;
  fields["round"] = report.round;
  fields["world"] = report.world;
  fields["applied"] = report.applied;
  fields["grad_norm"] = report.grad_norm;
  fields["clip_coef"] = report.clip_coef;
  fields["loss_scale"] = report.loss_scale;
  fields["opt_step"] = report.opt_step;
  fields["nonfinite"] = report.nonfinite;
  fields["consecutive_skips"] = report.consecutive_skips;
  fields["nonfinite_element"] = report.nonfinite_element;
  fields["weight_overflows"] = report.weight_overflows;
  fields["bytes_up"] = report.bytes_up;
  fields["bytes_down"] = report.bytes_down;
  fields["push_ns"] = report.push_ns;
  fields["wait_ns"] = report.wait_ns;
  fields["pull_ns"] = report.pull_ns;
  fields["collect_ns"] = report.collect_ns;
  fields["vote_ns"] = report.vote_ns;
  fields["step_ns"] = report.step_ns;
  fields["paused_ms"] = static_cast<double>(report.paused_ns) * 1e-6;
  fields["reconnects"] = report.reconnects;
  return fields;
}

nb::dict ToDict(const client::TransferCounters& counters) {
  nb::dict fields;
  fields["payload_up_bytes"] = counters.payload_up_bytes;
  fields["payload_down_bytes"] = counters.payload_down_bytes;
  fields["copied_up_bytes"] = counters.copied_up_bytes;
  fields["copied_down_bytes"] = counters.copied_down_bytes;
  fields["frames_refused"] = counters.frames_refused;
  return fields;
}

nb::dict ToDict(const client::DurableJob& job) {
  nb::dict fields;
  fields["name"] = job.name;
  fields["job"] = JobIdText(job.job_id);
  fields["state"] = job.state;
  fields["world"] = job.world;
  fields["round"] = job.round;
  fields["parameters"] = job.parameters;
  fields["open_streams"] = job.open_streams;
  fields["disk_bytes"] = job.disk_bytes;
  return fields;
}

nb::dict ToDict(const client::Snapshot& snapshot) {
  nb::dict fields;
  fields["job"] = snapshot.job;
  fields["name"] = snapshot.name;
  fields["round"] = snapshot.round;
  fields["created_s"] = snapshot.created_s;
  fields["bytes"] = snapshot.bytes;
  fields["parameters"] = snapshot.parameters;
  fields["world"] = snapshot.world;
  return fields;
}

nb::list ToList(const std::vector<client::DealtExtent>& extents) {
  nb::list list;
  for (const client::DealtExtent& extent : extents) {
    nb::list ranges;
    for (const client::TensorRange& range : extent.ranges) {
      ranges.append(nb::make_tuple(range.tensor, range.offset, range.elements));
    }
    list.append(nb::make_tuple(extent.group, extent.slot, ranges));
  }
  return list;
}

nb::list ToList(const std::vector<client::Pause>& pauses) {
  nb::list list;
  for (const client::Pause& pause : pauses) {
    const double away_s = std::chrono::duration<double>(pause.away).count();
    const int64_t server = pause.server == client::kServerUnknown ? -1 : int64_t{pause.server};
    list.append(nb::make_tuple(KindName(pause.kind), server, pause.address, pause.round, away_s,
                               pause.error, pause.slots, pause.epoch, pause.left, pause.world,
                               pause.joined));
  }
  return list;
}

}  // namespace ballast::python
