#include "server/server_security.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "server/config/quota_file.h"
#include "server/rpc/handshake_watch.h"
#include "server/setting_place.h"

namespace ballast::server {
namespace {

// How often files are checked for changes.
constexpr std::chrono::nanoseconds kLookInterval = std::chrono::seconds(1);

// The configuration is the last of `files`.
void SayConfiguration(const std::vector<FileOutcome>& files) {
  const FileOutcome& config = files.back();
  const absl::string_view why = config.status.message();
  for (const absl::string_view line : absl::StrSplit(why, '\n', absl::SkipEmpty())) {
    BALLAST_LOG(WARN) << "reload: " << line << "; the configuration stays as it was";
  }
  const bool good = std::all_of(files.begin(), files.end(),
                                [](const FileOutcome& file) { return file.status.ok(); });
  if (!good) return;
  BALLAST_LOG(INFO) << "reload: certificates and log settings are those of " << config.path
                    << " now; other fields take effect at the next start";
}

}  // namespace

ServerSecurity::ServerSecurity(const config::LoadedConfig& loaded, ServerMetrics* metrics)
    : loaded_(loaded),
      quotas_(std::make_shared<Quotas>(loaded.config.cluster().id())),
      gate_({.secured = loaded.config.security().mode() == config::v1::SECURITY_MODE_TLS,
             .domain = loaded.config.security().trust_domain()},
            metrics),
      audit_(RealClock::Get(), &WriteAuditLine),
      files_(std::make_shared<RereadFiles>(Files())) {}

absl::StatusOr<std::unique_ptr<ServerSecurity>> ServerSecurity::Open(
    const config::LoadedConfig& loaded, ServerMetrics* metrics, Executor* executor) {
  std::unique_ptr<ServerSecurity> security(new ServerSecurity(loaded, metrics));
  for (const FileOutcome& file : security->files_->Read()) {
    if (!file.status.ok()) return file.status;
  }
  security->files_->Watch(executor, kLookInterval);
  metrics->registry().AddCallback("ballast_files_at_fault", {}, [own = security.get()] {
    return static_cast<double>(own->faults().size());
  });
  if (!security->gate_.secured()) return security;
  Handshakes().AddTo(&metrics->registry());
  const auto now_s = [] { return static_cast<int64_t>(std::time(nullptr)); };
  BALLAST_ASSIGN_OR_RETURN(security->tls_,
                           ServerTls::Open(loaded, MemoryDirectory(), now_s, &metrics->registry()));
  security->tls_->Watch(executor, kLookInterval);
  return security;
}

std::vector<RereadFiles::File> ServerSecurity::Files() {
  const config::v1::Security& security = loaded_.config.security();
  std::vector<RereadFiles::File> files;
  const auto add = [&](const char* setting, const std::string& path,
                       absl::Status (ServerSecurity::*read)()) {
    if (path.empty()) return;
    files.push_back({setting, path, [this, setting, path, read] {
                       return WithPlace((this->*read)(), loaded_, {{setting, path}});
                     }});
  };
  add("security.tokens_file", security.tokens_file(), &ServerSecurity::ReadTokensFile);
  add("security.denied_file", security.denied_file(), &ServerSecurity::ReadDeniedFile);
  add("security.quotas_file", security.quotas_file(), &ServerSecurity::ReadQuotas);
  return files;
}

absl::Status ServerSecurity::ReadTokensFile() {
  GateFiles files = *gate_.files();
  BALLAST_RETURN_IF_ERROR(
      ReadTokens(loaded_.config.security().tokens_file(), gate_.domain(), &files.tokens));
  gate_.Replace(std::move(files));
  return absl::OkStatus();
}

absl::Status ServerSecurity::ReadDeniedFile() {
  GateFiles files = *gate_.files();
  BALLAST_RETURN_IF_ERROR(
      ReadDenied(loaded_.config.security().denied_file(), gate_.domain(), &files.denied));
  gate_.Replace(std::move(files));
  return absl::OkStatus();
}

absl::Status ServerSecurity::ReadQuotas() {
  const std::string& path = loaded_.config.security().quotas_file();
  BALLAST_ASSIGN_OR_RETURN(const std::string text, ReadOwnedFile(path));
  BALLAST_ASSIGN_OR_RETURN(QuotaTable limits, config::ParseQuotas(text, path));
  quotas_->SetLimits(std::move(limits));
  return absl::OkStatus();
}

std::vector<FileOutcome> ServerSecurity::Reload(const std::function<FileOutcome()>& log_settings) {
  std::vector<FileOutcome> outcomes = files_->Read();
  for (const FileOutcome& file : outcomes) {
    if (!file.status.ok()) WarnOfFault(file.status);
  }
  if (tls_ != nullptr) {
    const std::string& certificate = loaded_.config.security().certificate();
    outcomes.push_back({"security.certificate", certificate, tls_->Reload()});  // It logs.
  }
  if (log_settings == nullptr) return outcomes;
  outcomes.push_back(log_settings());
  SayConfiguration(outcomes);
  return outcomes;
}

std::vector<std::string> ServerSecurity::faults() const {
  std::vector<std::string> faults = files_->faults();
  if (tls_ == nullptr) return faults;
  if (std::string fault = tls_->state().error; !fault.empty()) faults.push_back(std::move(fault));
  return faults;
}

std::shared_ptr<grpc::ServerCredentials> ServerSecurity::ServerCredentials() const {
  return tls_ == nullptr ? nullptr : tls_->ServerCredentials();
}

std::shared_ptr<grpc::ChannelCredentials> ServerSecurity::ChannelCredentials() const {
  return tls_ == nullptr ? nullptr : tls_->ChannelCredentials();
}

void ServerSecurity::JoinCluster(PeerLinkConfig* link) {
  std::vector<uint32_t> ids;
  for (const ServerAddress& server : link->servers) ids.push_back(server.id);
  gate_.SetServers(link->self, ids);
  link->numbers = gate_.numbers();
}

}  // namespace ballast::server
