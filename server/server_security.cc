#include "server/server_security.h"

#include <ctime>
#include <utility>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "server/config/quota_file.h"
#include "server/handshake_watch.h"
#include "server/setting_place.h"

namespace ballast::server {
namespace {

// How often the files of certificates are looked at.
constexpr std::chrono::nanoseconds kTlsLookInterval = std::chrono::seconds(1);

}  // namespace

ServerSecurity::ServerSecurity(const config::LoadedConfig& loaded, ServerMetrics* metrics)
    : loaded_(loaded),
      quotas_(std::make_shared<Quotas>(loaded.config.cluster().id())),
      gate_({.secured = loaded.config.security().mode() == config::v1::SECURITY_MODE_TLS,
             .domain = loaded.config.security().trust_domain()},
            metrics),
      audit_(RealClock::Get(), &WriteAuditLine) {}

absl::StatusOr<std::unique_ptr<ServerSecurity>> ServerSecurity::Open(
    const config::LoadedConfig& loaded, ServerMetrics* metrics, Executor* executor) {
  std::unique_ptr<ServerSecurity> security(new ServerSecurity(loaded, metrics));
  const std::vector<absl::Status> faults = security->ReadFiles();
  if (!faults.empty()) return faults.front();
  if (!security->gate_.secured()) return security;
  Handshakes().AddTo(&metrics->registry());
  const auto now_s = [] { return static_cast<int64_t>(std::time(nullptr)); };
  BALLAST_ASSIGN_OR_RETURN(security->tls_,
                           ServerTls::Open(loaded, MemoryDirectory(), now_s, &metrics->registry()));
  security->tls_->Watch(executor, kTlsLookInterval);
  return security;
}

std::vector<absl::Status> ServerSecurity::ReadFiles() {
  const config::v1::Security& security = loaded_.config.security();
  GateFiles files = *gate_.files();
  std::vector<absl::Status> faults;
  const auto note = [&](absl::Status status, const char* setting, const std::string& path) {
    if (!status.ok()) faults.push_back(WithPlace(status, loaded_, {{setting, path}}));
  };
  note(ReadTokens(security.tokens_file(), gate_.domain(), &files.tokens), "security.tokens_file",
       security.tokens_file());
  note(ReadDenied(security.denied_file(), gate_.domain(), &files.denied), "security.denied_file",
       security.denied_file());
  gate_.Replace(std::move(files));
  note(ReadQuotas(security.quotas_file()), "security.quotas_file", security.quotas_file());
  return faults;
}

absl::Status ServerSecurity::ReadQuotas(const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  BALLAST_ASSIGN_OR_RETURN(const std::string text, ReadOwnedFile(path));
  BALLAST_ASSIGN_OR_RETURN(QuotaTable limits, config::ParseQuotas(text, path));
  quotas_->SetLimits(std::move(limits));
  return absl::OkStatus();
}

absl::Status ServerSecurity::Reload() {
  absl::Status first;
  for (const absl::Status& fault : ReadFiles()) {
    BALLAST_LOG(WARN) << fault.message() << "; what this file said before stays in force";
    first.Update(fault);
  }
  if (tls_ != nullptr) first.Update(tls_->Reload());  // It logs what is wrong.
  return first;
}

std::shared_ptr<grpc::ServerCredentials> ServerSecurity::ServerCredentials() const {
  return tls_ == nullptr ? nullptr : tls_->ServerCredentials();
}

void ServerSecurity::JoinCluster(PeerLinkConfig* link) {
  std::vector<uint32_t> ids;
  for (const ServerAddress& server : link->servers) ids.push_back(server.id);
  gate_.SetServers(link->self, ids);
  link->credentials = tls_ == nullptr ? nullptr : tls_->ChannelCredentials();
  link->numbers = gate_.numbers();
}

}  // namespace ballast::server
