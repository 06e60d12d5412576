#include "server/cluster/this_server.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/names.h"
#include "common/base/reason.h"

namespace ballast::server {

absl::Status ThisServer::CheckHome() const {
  if (stopping_) {
    return ReasonedError(absl::StatusCode::kUnavailable, Reason::kShuttingDown,
                         "the server is shutting down", {});
  }
  if (IsHome()) return absl::OkStatus();
  return ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kNotHome,
                       absl::StrCat("server ", id(), " is not the home of jobs; ask server ",
                                    home().id, " at ", home().address),
                       {.server = static_cast<int>(home().id), .address = home().address});
}

absl::Status ThisServer::ShuttingDown() const {
  return ReasonedError(absl::StatusCode::kUnavailable, Reason::kShuttingDown,
                       absl::StrCat("server ", id(), " is shutting down"),
                       {.server = static_cast<int>(id())});
}

absl::Status ThisServer::WithPlace(const absl::Status& status) const {
  if (ReasonOf(status) != Reason::kOverBudget) return status;
  ErrorFields fields = FieldsOf(status);
  fields.server = static_cast<int>(id());
  std::string address;
  for (const ServerAddress& server : config_.servers) {
    if (server.id == id()) address = server.address;
  }
  return ReasonedError(status.code(), Reason::kOverBudget,
                       absl::StrCat(status.message(), " [server ", id(), " at ", address, "]"),
                       fields);
}

absl::Status ThisServer::HomeLost(const std::string& why) const {
  return ReasonedError(absl::StatusCode::kUnavailable, Reason::kServerLost,
                       absl::StrCat("server ", id(), " has lost the home, server ", home().id, " (",
                                    why, "); call again when it is back"),
                       {.server = static_cast<int>(home().id)});
}

absl::Status ThisServer::NoDurableJob(uint64_t job) const {
  return ReasonedError(absl::StatusCode::kNotFound, Reason::kUnknownJob,
                       absl::StrCat("server ", id(), " has no durable job ", JobIdText(job)),
                       {.server = static_cast<int>(id())});
}

}  // namespace ballast::server
