#include "server/server_security.h"

#include <ctime>
#include <utility>

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
  BALLAST_RETURN_IF_ERROR(security->ReadFiles());
  if (!security->gate_.secured()) return security;
  const auto now_s = [] { return static_cast<int64_t>(std::time(nullptr)); };
  BALLAST_ASSIGN_OR_RETURN(security->tls_,
                           ServerTls::Open(loaded, MemoryDirectory(), now_s, &metrics->registry()));
  security->tls_->Watch(executor, kTlsLookInterval);
  return security;
}

absl::Status ServerSecurity::ReadFiles() {
  BALLAST_ASSIGN_OR_RETURN(GateFiles files, ReadGateFiles(paths_, gate_.domain()));
  QuotaTable limits;
  if (!quotas_file_.empty()) {
    BALLAST_ASSIGN_OR_RETURN(const std::string text, ReadOwnedFile(quotas_file_));
    BALLAST_ASSIGN_OR_RETURN(limits, config::ParseQuotas(text, quotas_file_));
  }
  // All of them, or none.
  gate_.Replace(std::move(files));
  quotas_->SetLimits(std::move(limits));
  return absl::OkStatus();
}

absl::Status ServerSecurity::Reload() {
  if (tls_ != nullptr) BALLAST_RETURN_IF_ERROR(tls_->Reload());  // It logs what is wrong.
  const absl::Status status = ReadFiles();
  if (!status.ok()) BALLAST_LOG(WARN) << status.message() << "; the files before stay in force";
  return status;
}

std::shared_ptr<grpc::ServerCredentials> ServerSecurity::ServerCredentials() const {
  return tls_ == nullptr ? nullptr : tls_->ServerCredentials();
}

std::shared_ptr<grpc::ChannelCredentials> ServerSecurity::ChannelCredentials() const {
  return tls_ == nullptr ? nullptr : tls_->ChannelCredentials();
}

}  // namespace ballast::server
