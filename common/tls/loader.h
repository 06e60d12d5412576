// TlsLoader: reads the files of one end of TLS, checks them, and hands on only those that can be
// used. A bad file changes nothing: the files loaded last stay in use.
// Comes from: the server, ChannelFactory. Goes to: tls_files.h, certificate.h; users of the files.
// Thread safety: thread-safe. One thread at a time reads, checks and publishes; no lock is held
// then.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/sync.h"
#include "common/tls/certificate.h"
#include "common/tls/tls_files.h"

namespace ballast {

struct TlsLoaderOptions {
  TlsPaths paths;
  TlsPaths labels;  // names of the settings, for messages
  TlsExpectation expected;
  // Seconds since 1970, UTC.
  std::function<int64_t()> now_s;
  // Takes good files. Its error counts as one of the files.
  std::function<absl::Status(const TlsFiles&)> publish;
};

struct TlsState {
  CertificateFacts facts;  // of the files in use
  uint64_t loads = 0;      // that were good
  uint64_t refusals = 0;   // that were not
  std::string error;       // of the newest load, or empty
};

class TlsLoader {
 public:
  explicit TlsLoader(TlsLoaderOptions options) : options_(std::move(options)) {}

  // Reads and checks all files, and publishes them. Errors: those of ReadTlsFiles and
  // CheckTlsFiles; then the files published earlier stay in use. Waits for a load under way.
  absl::Status Load();
  // Load() when a file has changed since the last load, or when that load failed; else nothing, and
  // OK, as while another thread loads. To be called about once a second.
  absl::Status LoadIfChanged();

  TlsState state() const;

 private:
  absl::StatusOr<CertificateFacts> TryLoad() const;
  // One load; the caller has set loading_.
  absl::Status LoadOnce();

  const TlsLoaderOptions options_;
  mutable Mutex mu_;
  CondVar loaded_;
  bool loading_ ABSL_GUARDED_BY(mu_) = false;
  std::string signature_ ABSL_GUARDED_BY(mu_);  // of the newest load
  TlsState state_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ballast
