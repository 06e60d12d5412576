// ServerTls: the certificates of this server. They are read at start, after SIGHUP, and when a file
// changes; only valid ones reach gRPC, through a private directory that it watches. A bad file
// changes nothing: the log and a metric name it, and the last good ones stay in use.
// Comes from: server.cc. Goes to: GenericServer's port and GrpcPeerTransport, as credentials;
// TlsLoader. Thread safety: thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/sync.h"
#include "common/metrics/registry.h"
#include "common/threads/executor.h"
#include "common/tls/loader.h"
#include "common/tls/staged_files.h"
#include "proto/convert/credentials.h"
#include "server/config/load.h"

namespace ballast::server {

class ServerTls : public std::enable_shared_from_this<ServerTls> {
 public:
  // For a configuration with `security.mode: tls`. `staging`: parent of the private directory,
  // preferably in memory. `now_s`: seconds since 1970, UTC. `registry` is not kept. Errors: those
  // of TlsLoader::Load, with the setting and its position; INTERNAL for `staging`.
  static absl::StatusOr<std::shared_ptr<ServerTls>> Open(const config::LoadedConfig& loaded,
                                                         const std::string& staging,
                                                         std::function<int64_t()> now_s,
                                                         MetricRegistry* registry);

  // Checks the files every `interval`, until this object is destroyed.
  void Watch(Executor* executor, std::chrono::nanoseconds interval);
  // Reads the files now. Errors describe the fault; the certificates in use then stay.
  absl::Status Reload();

  std::shared_ptr<grpc::ServerCredentials> ServerCredentials() const;
  std::shared_ptr<grpc::ChannelCredentials> ChannelCredentials() const;
  TlsState state() const { return loader_->state(); }

 private:
  ServerTls(const config::LoadedConfig& loaded, std::unique_ptr<StagedFiles> staged,
            std::function<int64_t()> now_s);

  void AddMetrics(MetricRegistry* registry);
  // Adds to `status` the place in the configuration that names the file.
  absl::Status Described(const absl::Status& status) const;
  void Look();
  void Count(const absl::Status& status);

  const config::LoadedConfig& loaded_;
  const std::unique_ptr<StagedFiles> staged_;
  const std::unique_ptr<TlsLoader> loader_;
  std::unique_ptr<const WatchedCredentials> credentials_;  // after the first load
  const std::shared_ptr<Counter> good_ = std::make_shared<Counter>();
  const std::shared_ptr<Counter> bad_ = std::make_shared<Counter>();

  Mutex mu_;
  uint64_t seen_loads_ ABSL_GUARDED_BY(mu_) = 0;
  std::string told_ ABSL_GUARDED_BY(mu_);  // the newest complaint
};

// Directory for private files that should not reach a disk: /dev/shm, or else the temporary
// directory.
std::string MemoryDirectory();

}  // namespace ballast::server
