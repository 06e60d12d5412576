// ChannelFactory: how a client of the servers connects: in plaintext, or over TLS with
// certificates, read again when their files change. The last good ones are kept, so a file just
// being replaced breaks no connection.
// Comes from: client/cpp, tools. Goes to: channel.h, TlsLoader; ExplainHandshake after failures.
// Thread safety: thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/sync.h"
#include "common/tls/loader.h"
#include "grpcpp/channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"

namespace ballast {

struct ClientSecurity {
  // Without authorities: plaintext. Certificate and key, or neither.
  TlsPaths tls;
  // File with a bearer token, which goes with every call; only over TLS. Empty: none.
  std::string token_file;
};

class ChannelFactory {
 public:
  // Seconds since 1970, UTC.
  using NowSeconds = std::function<int64_t()>;

  // In plaintext.
  ChannelFactory() = default;
  // Reads the files. Errors: INVALID_ARGUMENT, PERMISSION_DENIED, NOT_FOUND or FAILED_PRECONDITION,
  // each with the file or the variable, as TlsLoader::Load; INVALID_ARGUMENT for a token without
  // TLS.
  static absl::StatusOr<std::shared_ptr<ChannelFactory>> Create(const ClientSecurity& security,
                                                                NowSeconds now_s);
  ChannelFactory(const ChannelFactory&) = delete;
  ChannelFactory& operator=(const ChannelFactory&) = delete;

  // A channel to the server at `address` ("host:port") with a connection of its own, which begins
  // with the first call. `args`: MakeChannelArgs, with the caller's own limits added.
  std::shared_ptr<grpc::Channel> Make(const std::string& address,
                                      const grpc::ChannelArguments& args);
  std::shared_ptr<grpc::Channel> Make(const std::string& address, double time_scale);

  // Why no TLS connection to `address` comes about, as ExplainHandshake; "" without an answer.
  // Blocks for up to two seconds.
  std::string Explain(const std::string& address) const;

  bool secure() const { return loader_ != nullptr; }

 private:
  absl::Status Publish(const TlsFiles& files);
  // Reads changed files; logs once each unusable one.
  void LookAtFiles();

  ClientSecurity security_;
  std::unique_ptr<TlsLoader> loader_;  // null: plaintext

  mutable Mutex mu_;
  TlsFiles files_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<grpc::ChannelCredentials> credentials_ ABSL_GUARDED_BY(mu_);
  std::string told_ ABSL_GUARDED_BY(mu_);  // the newest complaint
};

}  // namespace ballast
