// Python values to and from the C++ client's types, and statuses to Python exceptions.
// Comes from: module.cc, operation.cc. Goes to: ballast/client.h, ballast/errors.py.
// Thread safety: the caller holds the GIL.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "ballast/admin.h"
#include "ballast/client.h"

namespace ballast::python {

// (name, shape, dtype, group, aliases): ballast.session.TensorSpec.
using TensorTuple =
    std::tuple<std::string, std::vector<int64_t>, std::string, uint32_t, std::vector<std::string>>;
// (ca, certificate, key, token_file): ballast.security.Security.
using SecurityTuple = std::tuple<std::string, std::string, std::string, std::string>;
// Integer addresses (Tensor.data_ptr()); 0 is null. The memory is the caller's.
using Addresses = std::vector<uintptr_t>;

// Raises the exception class of the status' reason (ballast.errors.from_status) by throwing
// nanobind's python_error. Requires !status.ok().
[[noreturn]] void Raise(const absl::Status& status);

client::Security ToSecurity(const SecurityTuple& security);

// Raises BadArgument when a dtype is none of float32, bfloat16, float16.
std::vector<client::Tensor> ToTensors(const std::vector<TensorTuple>& tuples);

// One TensorBuffers per weight; `grads` is empty (no gradients) or as long as `weights`. Raises
// BadArgument when the lengths differ.
std::vector<client::TensorBuffers> ToBuffers(const Addresses& grads, const Addresses& weights);

// Raises BadArgument unless `init` is "equal" or "broadcast".
client::InitMode ToInitMode(const std::string& init);
// Raises BadArgument unless `durability` is "power", "process" or "none".
client::Durability ToDurability(const std::string& durability);
// Raises BadArgument unless `device` is "auto", "cpu" or "nvme".
client::Device ToDevice(const std::string& device);
client::Gradients ToGradients(const std::string& gradients);
client::NonfinitePolicy ToNonfinitePolicy(const std::string& nonfinite);
// Raises BadArgument unless `profile` is "exact" or "deepspeed".
client::PolicyProfile ToProfile(const std::string& profile);

// Raises BadArgument unless `resume` is "never", "auto" or "must".
client::Resume ToResume(const std::string& resume);

nanobind::dict ToDict(const client::RoundReport& report);  // paused_ns as "paused_ms"
nanobind::dict ToDict(const client::TransferCounters& counters);
// By the names that `ballastctl -o json` has.
nanobind::dict ToDict(const client::DurableJob& job);
nanobind::dict ToDict(const client::Snapshot& snapshot);
// (kind, server, address, round, away_s, error, slots, epoch, left, world) each:
// ballast.pauses.Pause.
nanobind::list ToList(const std::vector<client::Pause>& pauses);

// A list of (group, slot, [(tensor, offset, elements)]).
nanobind::list ToList(const std::vector<client::DealtExtent>& extents);

}  // namespace ballast::python
