// A ballastd process for benchmarks, and what the system and its own metrics say about it.
// Comes from: round_bench. Goes to: the ballastd binary. Thread safety: one thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ballast::bench {

class ServerProcess {
 public:
  // Starts `binary --dev` with `arguments` and waits until it listens. Its log goes to our stderr,
  // warnings only. Errors: INTERNAL when it does not start or ends at once.
  static absl::StatusOr<std::unique_ptr<ServerProcess>> Start(
      const std::string& binary, const std::vector<std::string>& arguments);
  // Ends the process with SIGTERM and waits for it.
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  const std::string& address() const { return address_; }

  // User and system time of all its threads so far.
  absl::StatusOr<double> CpuSeconds() const;
  // Page faults without I/O so far.
  absl::StatusOr<uint64_t> MinorFaults() const;
  // Sum over all label values of a family on its /metrics page; 0 for an unknown family.
  absl::StatusOr<double> Metric(const std::string& family) const;
  // Congestion control of the TCP connections its port has accepted, each name once.
  absl::StatusOr<std::vector<std::string>> CongestionControl() const;

 private:
  explicit ServerProcess(std::string directory) : directory_(std::move(directory)) {}

  absl::Status Launch(const std::string& binary, const std::vector<std::string>& arguments);
  absl::Status AwaitReady();

  const std::string directory_;  // of the ready file; removed at the end
  pid_t pid_ = -1;
  std::string address_;
  std::string admin_;
};

// As ServerProcess::CongestionControl, for connections of the calling process to `port`.
std::vector<std::string> OwnCongestionControl(int port);

}  // namespace ballast::bench
