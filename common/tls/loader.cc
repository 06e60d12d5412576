#include "common/tls/loader.h"

#include <utility>

#include "common/base/status_macros.h"

namespace ballast {

absl::StatusOr<CertificateFacts> TlsLoader::TryLoad() const {
  BALLAST_ASSIGN_OR_RETURN(const TlsFiles files, ReadTlsFiles(options_.paths, options_.labels));
  BALLAST_ASSIGN_OR_RETURN(CertificateFacts facts,
                           CheckTlsFiles(files, options_.expected, options_.now_s()));
  BALLAST_RETURN_IF_ERROR(options_.publish(files));
  return facts;
}

absl::Status TlsLoader::LoadOnce() {
  // Before the files are read: a file that changes meanwhile is then read again.
  std::string signature = SignatureOf(options_.paths);
  absl::StatusOr<CertificateFacts> facts = TryLoad();
  MutexLock lock(&mu_);
  loading_ = false;
  loaded_.NotifyAll();
  signature_ = std::move(signature);
  if (facts.ok()) {
    ++state_.loads;
    state_.facts = *std::move(facts);
    state_.error.clear();
    return absl::OkStatus();
  }
  ++state_.refusals;
  const absl::string_view message = facts.status().message();
  state_.error.assign(message.data(), message.size());
  return facts.status();
}

absl::Status TlsLoader::Load() {
  {
    MutexLock lock(&mu_);
    while (loading_) loaded_.Wait(&mu_);
    loading_ = true;
  }
  return LoadOnce();
}

absl::Status TlsLoader::LoadIfChanged() {
  const std::string signature = SignatureOf(options_.paths);
  {
    MutexLock lock(&mu_);
    if (loading_ || (signature == signature_ && state_.error.empty())) return absl::OkStatus();
    loading_ = true;
  }
  return LoadOnce();
}

TlsState TlsLoader::state() const {
  MutexLock lock(&mu_);
  return state_;
}

}  // namespace ballast
