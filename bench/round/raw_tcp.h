// The yardstick of round_bench: one TCP connection over loopback to a process of its own that
// takes or gives bytes and does nothing else.
// Comes from: round_bench. Goes to: a forked child. Thread safety: one thread.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/arena.h"

namespace ballast::bench {

class RawTcpPeer {
 public:
  // Forks the other process, which must happen before this one has threads. `bytes` is the size of
  // every transfer; the child holds that much in huge pages, touched beforehand. Both sockets use
  // `congestion_control`. Errors: INTERNAL, with the system's reason.
  static absl::StatusOr<std::unique_ptr<RawTcpPeer>> Fork(size_t bytes,
                                                          const std::string& congestion_control);
  // Ends the child.
  ~RawTcpPeer();
  RawTcpPeer(const RawTcpPeer&) = delete;
  RawTcpPeer& operator=(const RawTcpPeer&) = delete;

  // Seconds from the first byte of `data` out to the child's answer that all have arrived.
  absl::StatusOr<double> Push(const char* data);
  // Seconds from asking to the last byte in `data`.
  absl::StatusOr<double> Pull(char* data);

  int fd() const { return fd_; }

 private:
  RawTcpPeer(size_t bytes, int fd, pid_t child) : bytes_(bytes), fd_(fd), child_(child) {}

  const size_t bytes_;
  const int fd_;
  const pid_t child_;
};

// The algorithm to compare with: the first of cubic and reno that a socket may select, which is
// what Ballast's own connections do. Error: INTERNAL when there is neither.
absl::StatusOr<std::string> ChooseCongestionControl();

}  // namespace ballast::bench
