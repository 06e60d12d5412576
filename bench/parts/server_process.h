// A ballastd process for benchmarks, with the system's and its own metrics about it.
// Comes from: round_bench, recovery_bench. Goes to: the ballastd binary. Thread safety: one thread.
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
  // warnings only; with `keep_log` all of it goes to a file instead. Errors: INTERNAL when it does
  // not start or ends at once.
  static absl::StatusOr<std::unique_ptr<ServerProcess>> Start(
      const std::string& binary, const std::vector<std::string>& arguments, bool keep_log = false);
  // Ends the process with SIGTERM and waits for it.
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  // Ends it with SIGKILL and waits until it is gone.
  void Kill();
  // Starts it again after Kill, with the same arguments and on the same port; begins a new log.
  absl::Status Restart();

  const std::string& address() const { return address_; }
  // Its log since its last start; with `keep_log` only.
  std::string Log() const;

  // User and system time of all its threads so far.
  absl::StatusOr<double> CpuSeconds() const;
  // Page faults without I/O so far.
  absl::StatusOr<uint64_t> MinorFaults() const;
  // Bytes that it has read from disks so far: what came from the page cache does not count.
  absl::StatusOr<uint64_t> DiskReadBytes() const;
  // Sum over all label values of a family on its /metrics page; 0 for an unknown family.
  absl::StatusOr<double> Metric(const std::string& family) const;
  // Congestion control of the TCP connections its port has accepted, each name once.
  absl::StatusOr<std::vector<std::string>> CongestionControl() const;

 private:
  ServerProcess(std::string directory, std::string binary, std::vector<std::string> arguments,
                bool keep_log)
      : directory_(std::move(directory)),
        binary_(std::move(binary)),
        arguments_(std::move(arguments)),
        keep_log_(keep_log) {}

  absl::Status Launch();
  absl::Status AwaitReady();

  const std::string directory_;  // of the ready file and the log; removed at the end
  const std::string binary_;
  std::vector<std::string> arguments_;
  const bool keep_log_;
  pid_t pid_ = -1;
  std::string address_;
  std::string admin_;
};

// As ServerProcess::CongestionControl, for connections of the calling process to `port`.
std::vector<std::string> OwnCongestionControl(int port);

}  // namespace ballast::bench
