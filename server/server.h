// Server: assembles the rooms of a state server in dependency order, and tears them down in
// reverse. It listens first and serves jobs as soon as it knows its peers.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/config/load.h"
#include "server/host/supervision.h"
#include "server/security/reread_files.h"

namespace ballast::server {

struct ServerOptions {
  config::LoadedConfig loaded;
  double time_scale = 1;   // stretches every time in `timing`
  std::string ready_file;  // empty: none
  // A disk refused a write or a flush: the process must end without another message.
  std::function<void(const absl::Status&)> storage_failed;
  // Reads the configuration again and takes its log settings; null without a file.
  std::function<FileOutcome()> reload_log_settings;
  SupervisionOptions supervision;  // empty: no supervisor expects messages from this server
};

class Server {
 public:
  // Binds both ports, writes the ready file, and serves unless the peers file is still missing.
  // Errors: INVALID_ARGUMENT for an instruction set this CPU lacks; UNAVAILABLE if an address
  // cannot be bound; INTERNAL if the ready file cannot be written.
  static absl::StatusOr<std::unique_ptr<Server>> Start(ServerOptions options);
  // As Stop().
  virtual ~Server() = default;

  // Checks once for the peers file, and serves if it exists. Errors: any fault in the file.
  virtual absl::Status PollPeers() = 0;
  virtual bool serving() const = 0;
  // The address given to trainers and other servers, and that of the admin port, or "" without one.
  virtual const std::string& address() const = 0;
  virtual const std::string& admin_address() const = 0;

  // Reloads the settings that need no restart: tokens, denied identities, quotas, certificates, and
  // the log settings of the configuration. A file at fault is named in the log and its older
  // content stays in force; the others take effect. Called after SIGHUP, and by `ballastctl
  // reload`.
  virtual std::vector<FileOutcome> Reload() = 0;

  // Fails every job with SHUTTING_DOWN, gives the streams a moment to deliver it, and ends.
  // Idempotent.
  virtual void Stop() = 0;
};

}  // namespace ballast::server
