// The quota file: limits on tenants' use of a server, as strict YAML like the configuration.
//
//   default: {jobs: 4, dram: 64GiB}      # of tenants without a row, and missing fields
//   tenants:
//     acme: {jobs: 16, disk: unlimited}
//
// Comes from: security.quotas_file. Goes to: Quotas. Thread safety: pure functions.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/quota/amounts.h"

namespace ballast::config {

// Reads `text`, called `name` in messages. Numbers of bytes carry units (ParseBytes); `unlimited`
// takes away the limit of the default row. INVALID_ARGUMENT, one "file:line:col: message" a line.
absl::StatusOr<server::QuotaTable> ParseQuotas(absl::string_view text, absl::string_view name);

}  // namespace ballast::config
