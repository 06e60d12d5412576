// The header of a bulk frame: everything of a frame but its payload. The fields are those of
// ballast.v1.DataFrame; docs/formats/wire.md has the bytes.
// Comes from: proto/convert, which reads and writes it. Goes to: the client's streams,
// server/service, server/engine. Thread safety: plain values, pure functions.
#pragma once

#include <cstdint>
#include <string>

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
// incarnation u64, offset u32, length u32, dtype u8, kind u8, array u8, all little-endian. The
// frame's checksum is Crc32c(payload, IdentityCrc(header)).
uint32_t IdentityCrc(const FrameHeader& header);

// The receiver's error for a frame whose checksum is `computed` and not header.crc32c.
std::string DamagedFrameText(const FrameHeader& header, uint32_t computed);

}  // namespace ballast
