#include "server/net/frame_guard.h"

#include <algorithm>

namespace ballast::server {
namespace {

constexpr uint8_t kData = 0;
constexpr uint8_t kHeaders = 1;
constexpr uint8_t kReset = 3;
constexpr uint8_t kWindowUpdate = 8;
constexpr uint8_t kContinuation = 9;
constexpr uint8_t kEndHeaders = 4;  // a flag

}  // namespace

FrameLimits FrameLimits::Of(size_t metadata_bytes, size_t streams) {
  FrameLimits limits;
  limits.header_block_bytes = std::max(limits.header_block_bytes, 2 * metadata_bytes);
  limits.resets = std::max(limits.resets, 4.0 * static_cast<double>(streams));
  limits.resets_per_second = limits.resets / 4;
  return limits;
}

std::optional<ConnectionRefusal> FrameGuard::Look(absl::string_view bytes,
                                                  std::chrono::nanoseconds now) {
  while (!bytes.empty() && !fault_.has_value()) {
    const size_t skipped = std::min(skip_, bytes.size());
    skip_ -= skipped;
    bytes.remove_prefix(skipped);
    const size_t taken = std::min(kHeadBytes - head_bytes_, bytes.size());
    std::copy_n(bytes.begin(), taken, head_.begin() + head_bytes_);
    head_bytes_ += taken;
    bytes.remove_prefix(taken);
    if (head_bytes_ < kHeadBytes) break;
    head_bytes_ = 0;
    skip_ = static_cast<size_t>(head_[0]) << 16 | static_cast<size_t>(head_[1]) << 8 | head_[2];
    OnHead(now);
  }
  return fault_;
}

void FrameGuard::OnHead(std::chrono::nanoseconds now) {
  const uint8_t type = head_[3];
  const bool ends = (head_[4] & kEndHeaders) != 0;
  switch (type) {
    // Both grow with the bytes of frames; gRPC bounds its buffers for them.
    case kData:
    case kWindowUpdate:
      break;
    case kHeaders:
      block_bytes_ = 0;
      CountBlock(kHeadBytes + skip_, ends);
      break;
    case kContinuation:
      CountBlock(kHeadBytes + skip_, ends);
      break;
    case kReset:
      Spend(&resets_, ConnectionRefusal::kResets, now);
      break;
    default:
      Spend(&controls_, ConnectionRefusal::kControls, now);
  }
}

void FrameGuard::CountBlock(size_t bytes, bool ends) {
  block_bytes_ += bytes;
  if (block_bytes_ > limits_.header_block_bytes) fault_ = ConnectionRefusal::kHeaders;
  if (ends) block_bytes_ = 0;
}

void FrameGuard::Spend(double* allowance, ConnectionRefusal fault, std::chrono::nanoseconds now) {
  const double seconds = std::chrono::duration<double>(now - filled_).count();
  filled_ = now;
  resets_ = std::min(limits_.resets, resets_ + seconds * limits_.resets_per_second);
  controls_ = std::min(limits_.controls, controls_ + seconds * limits_.controls_per_second);
  *allowance -= 1;
  if (*allowance < 0) fault_ = fault;
}

}  // namespace ballast::server
