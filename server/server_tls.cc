#include "server/server_tls.h"

#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/security/identity.h"
#include "server/setting_place.h"

namespace ballast::server {
namespace {

TlsLoaderOptions LoaderOptions(const config::v1::ServerConfig& config, StagedFiles* staged,
                               std::function<int64_t()> now_s) {
  const config::v1::Security& security = config.security();
  TlsLoaderOptions options;
  options.paths = {security.ca(), security.certificate(), security.key()};
  options.labels = {"security.ca", "security.certificate", "security.key"};
  options.expected.end = TlsEnd::kServer;
  Identity self;
  self.domain = security.trust_domain();
  self.role = Role::kServer;
  self.server = config.cluster().id();
  options.expected.uri = UriOf(self);
  options.now_s = std::move(now_s);
  options.publish = [staged](const TlsFiles& files) { return staged->Publish(files); };
  return options;
}

}  // namespace

absl::StatusOr<std::shared_ptr<ServerTls>> ServerTls::Open(const config::LoadedConfig& loaded,
                                                           const std::string& staging,
                                                           std::function<int64_t()> now_s,
                                                           MetricRegistry* registry) {
  BALLAST_ASSIGN_OR_RETURN(std::unique_ptr<StagedFiles> staged, StagedFiles::Create(staging));
  const std::shared_ptr<ServerTls> tls(new ServerTls(loaded, std::move(staged), std::move(now_s)));
  tls->AddMetrics(registry);
  const absl::Status status = tls->loader_->Load();
  if (!status.ok()) return tls->Described(status);
  tls->Count(status);
  tls->credentials_ = std::make_unique<const WatchedCredentials>(tls->staged_->paths());
  return tls;
}

ServerTls::ServerTls(const config::LoadedConfig& loaded, std::unique_ptr<StagedFiles> staged,
                     std::function<int64_t()> now_s)
    : loaded_(loaded),
      staged_(std::move(staged)),
      loader_(std::make_unique<TlsLoader>(
          LoaderOptions(loaded.config, staged_.get(), std::move(now_s)))) {}

void ServerTls::AddMetrics(MetricRegistry* registry) {
  const auto expiry = [this](int64_t CertificateFacts::*when) {
    return [weak = weak_from_this(), when] {
      const auto self = weak.lock();
      return self == nullptr ? 0 : static_cast<double>(self->loader_->state().facts.*when);
    };
  };
  registry->AddCallback("ballast_tls_cert_expiry_timestamp_seconds", {{"file", "certificate"}},
                        expiry(&CertificateFacts::not_after_s));
  registry->AddCallback("ballast_tls_cert_expiry_timestamp_seconds", {{"file", "ca"}},
                        expiry(&CertificateFacts::ca_not_after_s));
  registry->Add("ballast_tls_reloads_total", {{"result", "loaded"}},
                std::shared_ptr<const Counter>(good_));
  registry->Add("ballast_tls_reloads_total", {{"result", "refused"}},
                std::shared_ptr<const Counter>(bad_));
}

absl::Status ServerTls::Described(const absl::Status& status) const {
  const config::v1::Security& security = loaded_.config.security();
  return WithPlace(status, loaded_,
                   {{"security.ca", security.ca()},
                    {"security.certificate", security.certificate()},
                    {"security.key", security.key()}});
}

// Logs one line if certificates were loaded since the last call, and one for each new complaint.
void ServerTls::Count(const absl::Status& status) {
  const TlsState state = loader_->state();
  const std::string complaint(Described(status).message());
  bool loaded = false;
  bool complains = false;
  {
    MutexLock lock(&mu_);
    loaded = state.loads != std::exchange(seen_loads_, state.loads);
    complains = !complaint.empty() && complaint != told_;
    if (loaded || complains) told_ = complaint;
  }
  if (loaded) {
    good_->Add();
    BALLAST_LOG(INFO, LogField("subject", state.facts.subject),
                LogField("valid_until", UtcText(state.facts.not_after_s)),
                LogField("authorities", state.facts.authorities))
        << "certificates loaded";
  }
  if (!complains) return;
  bad_->Add();
  BALLAST_LOG(WARN) << complaint << "; the certificates that were loaded last stay in use";
}

absl::Status ServerTls::Reload() {
  const absl::Status status = loader_->Load();
  Count(status);
  return Described(status);
}

void ServerTls::Look() { Count(loader_->LoadIfChanged()); }

void ServerTls::Watch(Executor* executor, std::chrono::nanoseconds interval) {
  executor->PostAfter(interval, [weak = weak_from_this(), executor, interval] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    self->Look();
    self->Watch(executor, interval);
  });
}

std::shared_ptr<grpc::ServerCredentials> ServerTls::ServerCredentials() const {
  return credentials_->Server(loaded_.config.security().tokens_file().empty());
}

std::shared_ptr<grpc::ChannelCredentials> ServerTls::ChannelCredentials() const {
  return credentials_->Channel();
}

std::string MemoryDirectory() {
  if (access("/dev/shm", W_OK | X_OK) == 0) return "/dev/shm";
  std::error_code error;
  const std::filesystem::path temporary = std::filesystem::temp_directory_path(error);
  return error ? "/tmp" : temporary.string();
}

}  // namespace ballast::server
