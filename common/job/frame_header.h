// The header of a bulk frame: everything of a frame but its payload. The fields are those of
// ballast.v1.DataFrame; docs/formats/wire.md has the bytes.
// Comes from: proto/convert, which reads and writes it. Goes to: the client's streams,
// server/service, server/engine. Thread safety: plain values, pure functions.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/bytes/payload.h"
#include "common/tensor/dtype.h"

namespace ballast {

// Numbers of ballast.v1.FrameKind.
enum class FrameKind : uint8_t { kUnspecified = 0, kGradient, kInit, kWeight, kState };

struct FrameHeader {
  uint64_t job = 0;
  uint32_t epoch = 0;
  uint32_t slot = 0;
  uint64_t round = 0;
  uint32_t extent = 0;
  uint64_t incarnation = 0;
  uint32_t offset_bytes = 0;  // from the extent's start, in `dtype`
  uint32_t length_bytes = 0;  // of the payload
  DType dtype = kNoDType;
  FrameKind kind = FrameKind::kUnspecified;
  uint8_t array = 0;    // of kState: which array of the state
  uint32_t crc32c = 0;  // of identity and payload, as the sender says
};

// CRC32C of the frame's identity: job u64, epoch u32, round u64, extent u32, slot u32,
// incarnation u64, offset u32, length u32, dtype u8, kind u8, array u8, all little-endian. A sender
// or receiver that copies the payload continues this checksum as it copies, without a second pass.
uint32_t IdentityCrc(const FrameHeader& header);

// The frame's checksum: of its identity, and then of its payload.
uint32_t FrameCrc(const FrameHeader& header, const Payload& payload);

// OK when the frame's crc32c is `computed`, the checksum of the bytes that arrived; else DATA_LOSS
// BAD_CHECKSUM with both values, and the frame's round, slot, extent and offset.
absl::Status CheckFrameCrc(const FrameHeader& header, uint32_t computed);

}  // namespace ballast
