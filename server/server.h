// Server: the rooms of a state server put together in the order of their needs, and taken apart in
// reverse. It listens first and serves jobs as soon as it knows its peers.
// Comes from: main, ballast's own tests. Goes to: every server room.
// Thread safety: one thread, the owner's.
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
  // A disk refused a write or a flush: the process must end without another word.
  std::function<void(const absl::Status&)> storage_failed;
  // Reads the configuration again and takes its log settings; null without a file.
  std::function<FileOutcome()> reload_log_settings;
  SupervisionOptions supervision;  // empty: no supervisor waits for words of this server
};

class Server {
 public:
  // Binds both ports, writes the ready file, and serves unless the peers file is still to come.
  // Errors: INVALID_ARGUMENT for an instruction set this CPU lacks; UNAVAILABLE for an address that
  // cannot be bound; INTERNAL for a ready file that cannot be written.
  static absl::StatusOr<std::unique_ptr<Server>> Start(ServerOptions options);
  // As Stop().
  virtual ~Server() = default;

  // Looks for the peers file once, and serves when it is there. Errors: what is wrong in it.
  virtual absl::Status PollPeers() = 0;
  virtual bool serving() const = 0;
  // The address told to trainers and other servers; of the admin port, or "" without one.
  virtual const std::string& address() const = 0;
  virtual const std::string& admin_address() const = 0;

  // Reads again what takes effect without a restart: tokens, denied identities, quotas,
  // certificates, and the log settings of the configuration. A file at fault changes nothing of
  // what it said before, and the log names it; the others take effect. After SIGHUP, and by
  // `ballastctl reload`.
  virtual std::vector<FileOutcome> Reload() = 0;

  // Fails every job with SHUTTING_DOWN, gives the streams a moment to say so, and ends. Idempotent.
  virtual void Stop() = 0;
};

}  // namespace ballast::server
