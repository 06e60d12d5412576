#include "proto/convert/channel_factory.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/tls/handshake.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"
#include "proto/convert/channel.h"

namespace ballast {
namespace {

const TlsPaths& Labels() {
  static const auto* labels = new TlsPaths{"BALLAST_TLS_CA", "BALLAST_TLS_CERT", "BALLAST_TLS_KEY"};
  return *labels;
}

std::shared_ptr<grpc::ChannelCredentials> TlsCredentialsOf(const TlsFiles& files) {
  grpc::experimental::TlsChannelCredentialsOptions options;
  std::vector<grpc::experimental::IdentityKeyCertPair> pairs;
  if (!files.key.text.empty()) pairs.push_back({files.key.text, files.certificate.text});
  options.set_certificate_provider(
      std::make_shared<grpc::experimental::StaticDataCertificateProvider>(files.ca.text, pairs));
  options.watch_root_certs();
  if (!pairs.empty()) options.watch_identity_key_cert_pairs();
  return grpc::experimental::TlsCredentials(options);
}

}  // namespace

absl::StatusOr<std::shared_ptr<ChannelFactory>> ChannelFactory::Create(
    const ClientSecurity& security, NowSeconds now_s) {
  auto factory = std::make_shared<ChannelFactory>();
  if (security.tls.empty() && security.token_file.empty()) return factory;
  if (security.tls.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("BALLAST_TOKEN_FILE names ", security.token_file,
                     ", but a token travels over TLS only; set BALLAST_TLS_CA as well"));
  }
  factory->security_ = security;
  TlsLoaderOptions options;
  options.paths = security.tls;
  options.labels = Labels();
  options.now_s = std::move(now_s);
  options.publish = [raw = factory.get()](const TlsFiles& files) { return raw->Publish(files); };
  factory->loader_ = std::make_unique<TlsLoader>(std::move(options));
  BALLAST_RETURN_IF_ERROR(factory->loader_->Load());
  return factory;
}

absl::Status ChannelFactory::Publish(const TlsFiles& files) {
  std::shared_ptr<grpc::ChannelCredentials> credentials = TlsCredentialsOf(files);
  if (!security_.token_file.empty()) {
    BALLAST_ASSIGN_OR_RETURN(const std::string token, ReadTokenFile(security_.token_file));
    credentials =
        grpc::CompositeChannelCredentials(credentials, grpc::AccessTokenCredentials(token));
  }
  MutexLock lock(&mu_);
  files_ = files;
  credentials_ = std::move(credentials);
  return absl::OkStatus();
}

void ChannelFactory::LookAtFiles() {
  const absl::Status status = loader_->LoadIfChanged();
  MutexLock lock(&mu_);
  std::string complaint;
  if (!status.ok()) complaint.assign(status.message().data(), status.message().size());
  if (complaint == told_) return;
  told_ = std::move(complaint);
  if (!told_.empty()) BALLAST_LOG(WARN) << told_ << "; the files that were read last stay in use";
}

std::shared_ptr<grpc::Channel> ChannelFactory::Make(const std::string& address,
                                                    const grpc::ChannelArguments& args) {
  if (loader_ == nullptr) return MakeChannel(address, args, PlainChannelCredentials());
  LookAtFiles();
  MutexLock lock(&mu_);
  return MakeChannel(address, args, credentials_);
}

std::shared_ptr<grpc::Channel> ChannelFactory::Make(const std::string& address, double time_scale) {
  return Make(address, MakeChannelArgs(time_scale));
}

std::string ChannelFactory::Explain(const std::string& address) const {
  HandshakeQuestion question;
  question.address = address;
  question.tls = secure();
  {
    MutexLock lock(&mu_);
    question.files = files_;
  }
  return ExplainHandshake(question);
}

}  // namespace ballast
