// The admin port's pages about this server's activity and configuration.
// Comes from: server.cc. Goes to: AdminServer. Thread safety: any thread may call all functions;
// those that look at jobs wait for the jobs' strands, for 2 s at most.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "ballast/v1/admin.pb.h"
#include "server/config/load.h"
#include "server/service/admin_service.h"
#include "server/service/directory_holder.h"

namespace ballast::server {

class StatusPages {
 public:
  // `directory` and `loaded` outlive this object; any thread may call `facts`.
  StatusPages(const DirectoryHolder* directory, const config::LoadedConfig* loaded,
              std::function<ServerFacts()> facts)
      : directory_(directory), loaded_(loaded), facts_(std::move(facts)) {}

  // /statusz for tools, as text or JSON; and for browsers.
  std::string Status(bool json) const;
  std::string StatusForBrowsers() const;
  // /configz: the settings and the source of each, or the settings as JSON.
  std::string Config(bool json) const;

 private:
  // The current status; nullopt if the jobs' strands do not answer.
  std::optional<v1::StatusReply> Look() const;

  const DirectoryHolder* const directory_;
  const config::LoadedConfig* const loaded_;
  const std::function<ServerFacts()> facts_;
};

}  // namespace ballast::server
