#include "server/server_security.h"

#include <ctime>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "server/config/quota_file.h"

namespace ballast::server {
namespace {

// How often the files of certificates are looked at.
constexpr std::chrono::nanoseconds kTlsLookInterval = std::chrono::seconds(1);

}  // namespace

ServerSecurity::ServerSecurity(const config::v1::ServerConfig& config, ServerMetrics* metrics)
    : paths_(
          {.tokens = config.security().tokens_file(), .denied = config.security().denied_file()}),
      quotas_file_(config.security().quotas_file()),
      quotas_(std::make_shared<Quotas>(config.cluster().id())),
      gate_({.secured = config.security().mode() == config::v1::SECURITY_MODE_TLS,
             .domain = config.security().trust_domain()},
            metrics),
      audit_(RealClock::Get(), &WriteAuditLine) {}

absl::StatusOr<std::unique_ptr<ServerSecurity>> ServerSecurity::Open(
    const config::LoadedConfig& loaded, ServerMetrics* metrics, Executor* executor) {
  std::unique_ptr<ServerSecurity> security(new ServerSecurity(loaded.config, metrics));
  BALLAST_RETURN_IF_ERROR(security->ReadGate());
  BALLAST_RETURN_IF_ERROR(security->ReadQuotas());
  if (!security->gate_.secured()) return security;
  const auto now_s = [] { return static_cast<int64_t>(std::time(nullptr)); };
  BALLAST_ASSIGN_OR_RETURN(security->tls_,
                           ServerTls::Open(loaded, MemoryDirectory(), now_s, &metrics->registry()));
  security->tls_->Watch(executor, kTlsLookInterval);
  return security;
}

absl::Status ServerSecurity::ReadGate() {
  GateFiles files = *gate_.files();
  absl::Status status = ReadGateFiles(paths_, gate_.domain(), &files);
  gate_.Replace(std::move(files));
  return status;
}

absl::Status ServerSecurity::ReadQuotas() {
  if (quotas_file_.empty()) return absl::OkStatus();
  BALLAST_ASSIGN_OR_RETURN(const std::string text, ReadOwnedFile(quotas_file_));
  BALLAST_ASSIGN_OR_RETURN(QuotaTable limits, config::ParseQuotas(text, quotas_file_));
  quotas_->SetLimits(std::move(limits));
  return absl::OkStatus();
}

absl::Status ServerSecurity::Reload() {
  std::vector<std::string> faults;
  for (const absl::Status& status : {ReadGate(), ReadQuotas()}) {
    for (const absl::string_view line : absl::StrSplit(status.message(), '\n', absl::SkipEmpty())) {
      BALLAST_LOG(WARN) << line << "; what this file said before stays in force";
      faults.emplace_back(line);
    }
  }
  if (tls_ != nullptr) {
    const absl::Status tls = tls_->Reload();  // It logs what is wrong.
    if (!tls.ok()) faults.emplace_back(tls.message());
  }
  if (faults.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(faults, "\n"));
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
