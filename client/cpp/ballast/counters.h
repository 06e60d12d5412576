// Bytes that a client has moved since its attach.
// Comes from: Client::counters(). Goes to: its caller. C++17-clean. Thread safety: plain values.
#pragma once

#include <cstdint>

namespace ballast::client {

// Copies per byte are copied / payload bytes of a direction: 0 up, where the transport reads the
// caller's own memory; 1 down, out of the transport's memory.
struct TransferCounters {
  uint64_t payload_up_bytes = 0;
  uint64_t payload_down_bytes = 0;
  uint64_t copied_up_bytes = 0;
  uint64_t copied_down_bytes = 0;
  uint64_t frames_refused = 0;
};

}  // namespace ballast::client
