// ServerSecurity: authentication of connections and calls (certificates, the gate and its files,
// the audit log) and the quotas of tenants. Comes from: Server. Goes to: GenericServer, the
// services. Thread safety: thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ballast/config/v1/server.pb.h"
#include "common/metrics/metrics.h"
#include "common/threads/executor.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "server/config/load.h"
#include "server/peer/peer_client.h"
#include "server/quota/quotas.h"
#include "server/security/audit.h"
#include "server/security/gate.h"
#include "server/security/reread_files.h"
#include "server/server_tls.h"

namespace ballast::server {

class ServerSecurity {
 public:
  // Reads the files named by `loaded`, and checks every second on `executor` whether one has
  // changed. Errors: those of ReadTokens, ReadDenied and of quotas, with the setting and its
  // position, and of ServerTls::Open. `loaded`, `metrics` and `executor` outlive it, and it must
  // outlive the last scrape.
  static absl::StatusOr<std::unique_ptr<ServerSecurity>> Open(const config::LoadedConfig& loaded,
                                                              ServerMetrics* metrics,
                                                              Executor* executor);

  ~ServerSecurity() { files_->Stop(); }
  ServerSecurity(const ServerSecurity&) = delete;
  ServerSecurity& operator=(const ServerSecurity&) = delete;

  // Rereads all files, then the configuration with `log_settings`, which may be null. A file at
  // fault is named in the log and changes nothing; the others take effect.
  std::vector<FileOutcome> Reload(const std::function<FileOutcome()>& log_settings);
  // One sentence for each faulty file whose older content is in force.
  std::vector<std::string> faults() const;

  bool secured() const { return tls_ != nullptr; }
  // Of the gRPC port. Null without security: plaintext.
  std::shared_ptr<grpc::ServerCredentials> ServerCredentials() const;
  // Of the connections to other servers. Likewise.
  std::shared_ptr<grpc::ChannelCredentials> ChannelCredentials() const;
  Gate* gate() { return &gate_; }
  // Tells the gate the servers of the cluster, and `link` how they identify this one.
  void JoinCluster(PeerLinkConfig* link);
  // The limits of the quota file, and the current usage. Also available without security.
  const std::shared_ptr<Quotas>& quotas() const { return quotas_; }
  // Without security: records refused calls.
  AuditLog* audit() { return &audit_; }

 private:
  ServerSecurity(const config::LoadedConfig& loaded, ServerMetrics* metrics);

  // Each file is reloaded by itself: a bad token file does not block a revocation.
  std::vector<RereadFiles::File> Files();
  absl::Status ReadTokensFile();
  absl::Status ReadDeniedFile();
  absl::Status ReadQuotas();

  const config::LoadedConfig& loaded_;
  const std::shared_ptr<Quotas> quotas_;
  Gate gate_;
  AuditLog audit_;
  const std::shared_ptr<RereadFiles> files_;
  std::shared_ptr<ServerTls> tls_;  // null without security
};

}  // namespace ballast::server
