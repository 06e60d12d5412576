#include "common/job/frame_header.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/bytes/crc32c.h"

namespace ballast {
namespace {

template <typename T>
char* PutLittleEndian(char* out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) *out++ = static_cast<char>(value >> (8 * i));
  return out;
}

}  // namespace

uint32_t IdentityCrc(const FrameHeader& header) {
  char bytes[47];
  char* out = bytes;
  out = PutLittleEndian(out, header.job);
  out = PutLittleEndian(out, header.epoch);
  out = PutLittleEndian(out, header.round);
  out = PutLittleEndian(out, header.extent);
  out = PutLittleEndian(out, header.slot);
  out = PutLittleEndian(out, header.incarnation);
  out = PutLittleEndian(out, header.offset_bytes);
  out = PutLittleEndian(out, header.length_bytes);
  out = PutLittleEndian(out, static_cast<uint8_t>(header.dtype));
  out = PutLittleEndian(out, static_cast<uint8_t>(header.kind));
  out = PutLittleEndian(out, header.array);
  return Crc32c(bytes, static_cast<size_t>(out - bytes));
}

uint32_t FrameCrc(const FrameHeader& header, const Payload& payload) {
  return payload.Crc32c(IdentityCrc(header));
}

absl::Status CheckFrameCrc(const FrameHeader& header, uint32_t computed) {
  if (computed == header.crc32c) return absl::OkStatus();
  ErrorFields fields;
  fields.round = header.round;
  fields.slot = static_cast<int>(header.slot);
  return ReasonedError(
      absl::StatusCode::kDataLoss, Reason::kBadChecksum,
      absl::StrCat("frame of round ", header.round, " extent ", header.extent, " offset ",
                   header.offset_bytes, " from slot ", header.slot, ": crc32c ",
                   absl::Hex(header.crc32c, absl::kZeroPad8), " on the wire, ",
                   absl::Hex(computed, absl::kZeroPad8), " computed; send it again"),
      fields);
}

}  // namespace ballast
