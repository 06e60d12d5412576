// StagedFiles: a private directory in which only checked files lie. A set of them is written next
// to the old one and becomes visible by the swap of one link, so that a reader of the paths finds a
// whole set: <parent>/ballast-tls-XXXXXX/current -> set-N, with ca.pem, certificate.pem and
// key.pem. gRPC's file watcher takes any file it finds, and a bad one would refuse every new
// handshake. Comes from: the server's TlsLoader. Goes to: gRPC's FileWatcherCertificateProvider,
// POSIX. Thread safety: thread-compatible; the paths are constant.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/tls/tls_files.h"

namespace ballast {

class StagedFiles {
 public:
  // Makes the directory, of mode 0700, below `parent`, and removes those that processes of this
  // user have left there when they were killed. Error: INTERNAL with the path and the cause.
  static absl::StatusOr<std::unique_ptr<StagedFiles>> Create(const std::string& parent);
  // Removes the directory and its content.
  ~StagedFiles();
  StagedFiles(const StagedFiles&) = delete;
  StagedFiles& operator=(const StagedFiles&) = delete;

  // Makes `files` the current set. Error: INTERNAL with the path and the cause; the old set stays.
  // Files of two sets differ in their times by whole seconds, by which gRPC 1.51 notices that it
  // has read a key of one set and a certificate of another.
  absl::Status Publish(const TlsFiles& files);

  // Where the current set lies; there is none before the first Publish.
  const TlsPaths& paths() const { return paths_; }
  const std::string& directory() const { return directory_; }

 private:
  StagedFiles(std::string directory, int lock);

  std::string SetName(uint64_t number) const;
  absl::Status WriteSet(const std::string& folder, const TlsFiles& files) const;
  absl::Status SwapTo(uint64_t number) const;

  const std::string directory_;
  const int lock_;  // of the directory, held while the owner lives
  const TlsPaths paths_;
  uint64_t published_ = 0;
};

}  // namespace ballast
