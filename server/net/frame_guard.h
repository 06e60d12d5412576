// FrameGuard: reads along with the frames that one client sends, before gRPC has them, and says
// when they are more than gRPC 1.51 bounds: headers without an end (CVE-2023-33953), streams opened
// and reset again and again (CVE-2023-44487), frames that only want an answer. It reads nine bytes
// of each frame, and keeps none.
// Comes from: ReadGuards. Goes to: nothing. Thread safety: thread-compatible; times come in.
// Source: RFC 9113, sections 3.4, 4.1 and 6.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "server/net/connection_gate.h"

namespace ballast::server {

struct FrameLimits {
  // Bounds above the traffic that a server with these settings allows: `metadata_bytes` is gRPC's
  // limit for decoded headers, `streams` the most that a connection may have open.
  static FrameLimits Of(size_t metadata_bytes, size_t streams);

  // Bytes of one block of headers, with the heads of its frames; our clients send less than 1 KiB.
  size_t header_block_bytes = 64 << 10;
  // Streams that a client may reset at once, and in each second. A client that cancels a call
  // resets its stream.
  double resets = 256, resets_per_second = 64;
  // PING, SETTINGS and all that carries no call.
  double controls = 1024, controls_per_second = 256;
};

class FrameGuard {
 public:
  explicit FrameGuard(const FrameLimits& limits = {})
      : limits_(limits), resets_(limits.resets), controls_(limits.controls) {}

  // Looks at the bytes after those of earlier calls, in pieces of any size. Returns why the
  // connection has to end, and the same from then on. `now` never goes back.
  std::optional<ConnectionRefusal> Look(absl::string_view bytes, std::chrono::nanoseconds now);

 private:
  static constexpr size_t kHeadBytes = 9;

  // Judges the frame whose head is complete.
  void OnHead(std::chrono::nanoseconds now);
  void CountBlock(size_t bytes, bool ends);
  // Takes one of an allowance that fills with time.
  void Spend(double* allowance, ConnectionRefusal fault, std::chrono::nanoseconds now);

  FrameLimits limits_;
  double resets_;  // how many more there may be
  double controls_;
  std::chrono::nanoseconds filled_{0};
  size_t skip_ = 24;  // of the preface, then of the payload of a frame
  std::array<uint8_t, kHeadBytes> head_{};
  size_t head_bytes_ = 0;
  size_t block_bytes_ = 0;  // of unfinished headers
  std::optional<ConnectionRefusal> fault_;
};

}  // namespace ballast::server
