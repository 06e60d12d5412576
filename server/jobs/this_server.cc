#include "server/jobs/this_server.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/reason.h"
#include "common/text/names.h"

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

std::vector<ServerAddress> ServersOf(const DirectoryConfig& config, const JobPlan& plan) {
  std::vector<ServerAddress> servers;
  std::copy_if(config.servers.begin(), config.servers.end(), std::back_inserter(servers),
               [&](const ServerAddress& server) {
                 return std::binary_search(plan.servers.begin(), plan.servers.end(), server.id);
               });
  return servers;
}

absl::Status ThisServer::CheckServers(const JobPlan& plan) const {
  if (plan.servers.empty()) return absl::OkStatus();  // CheckPlan refuses it.
  const ErrorFields fields{.job = plan.spec.name, .server = static_cast<int>(id())};
  std::vector<uint32_t> removed = plan.servers;
  for (const ServerAddress& server : ServersOf(config_, plan)) std::erase(removed, server.id);
  if (!removed.empty()) {
    return ReasonedError(
        absl::StatusCode::kFailedPrecondition, Reason::kServerRemoved,
        absl::StrCat("job \"", plan.spec.name, "\" has state on servers ",
                     absl::StrJoin(plan.servers, ", "), ", and cluster.peers of server ", id(),
                     " lacks ", absl::StrJoin(removed, ", "),
                     ": put that back, the same at all servers, and restart them"),
        fields);
  }
  if (plan.servers.front() == home().id) return absl::OkStatus();
  return ReasonedError(
      absl::StatusCode::kFailedPrecondition, Reason::kUnsupported,
      absl::StrCat("the home of job \"", plan.spec.name, "\" is server ", plan.servers.front(),
                   ", and cluster.peers has got a server with a lower id, ", home().id,
                   ", which would be the home: give the added server an id above ",
                   plan.servers.back(), ", and restart all servers"),
      fields);
}

absl::Status ThisServer::NoDurableJob(uint64_t job) const {
  return ReasonedError(absl::StatusCode::kNotFound, Reason::kUnknownJob,
                       absl::StrCat("server ", id(), " has no durable job ", JobIdText(job)),
                       {.server = static_cast<int>(id())});
}

}  // namespace ballast::server
