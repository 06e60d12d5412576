// Python values to and from the C++ client's types, and statuses to Python exceptions.
// Comes from: module.cc, operation.cc. Goes to: ballast/client.h, ballast/errors.py.
// Thread safety: the caller holds the GIL.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "ballast/admin.h"
#include "ballast/client.h"
#include "common/types/enum_names.h"

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
[[noreturn]] void RaiseBadArgument(const std::string& message);

client::Security ToSecurity(const SecurityTuple& security);

// Raises BadArgument when a dtype is none of float32, bfloat16, float16.
std::vector<client::Tensor> ToTensors(const std::vector<TensorTuple>& tuples);

// One TensorBuffers per weight; `grads` is empty (no gradients) or as long as `weights`. Raises
// BadArgument when the lengths differ.
std::vector<client::TensorBuffers> ToBuffers(const Addresses& grads, const Addresses& weights);

// The value of E that `name` is; BadArgument with all names if it is none. `field`: of the option.
template <NamedEnum E>
E ToEnum(const char* field, const std::string& name) {
  if (const std::optional<E> value = FromName<E>(name); value.has_value()) return *value;
  RaiseBadArgument(absl::StrCat(field, " is '", name, "'; must be ", QuotedNames<E>()));
}

std::chrono::milliseconds Milliseconds(double seconds);

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
