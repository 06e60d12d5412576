// The key space of the metadata store (docs/formats/meta.md), so that no room writes keys by hand.
//   jobs/<name>               job id, decimal; a job of the tenant "default"
//   jobs/<tenant>/<name>      likewise, of any other
//   job/<id>/plan             the plan in force
//   job/<id>/epoch/<epoch>    the epoch record, 20 digits, write-once
//   server/<id>               a state server and its devices
// Comes from: users of MetaStore. Goes to: nothing. Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/text/qualified_name.h"

namespace ballast::server {

// Prefix of the keys of all jobs.
inline constexpr char kJobNamesPrefix[] = "jobs/";
// Prefix of the keys of all servers. Ids are not padded: server/10 comes before server/9.
inline constexpr char kServersPrefix[] = "server/";

// INVALID_ARGUMENT when the job or its tenant has no name (common/text/names.h).
absl::StatusOr<std::string> JobNameKey(const QualifiedName& job);
std::string JobPlanKey(uint64_t job);
// Prefix of all epochs of `job`; they list in the order of their numbers.
std::string JobEpochsPrefix(uint64_t job);
std::string JobEpochKey(uint64_t job, uint64_t epoch);
std::string ServerKey(uint32_t server);

// The number after the last '/' of a key of this module: of a server, or of an epoch.
// INVALID_ARGUMENT, naming the key, for anything but a decimal number below 2^64.
absl::StatusOr<uint64_t> NumberOfKey(absl::string_view key);

}  // namespace ballast::server
