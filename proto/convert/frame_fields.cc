#include "proto/convert/frame_fields.h"

#include "absl/strings/str_cat.h"
#include "ballast/v1/data.pb.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/base/varint.h"
#include "common/faults/planted.h"

namespace ballast {
namespace {

static_assert(static_cast<int>(FrameKind::kGradient) == v1::FRAME_KIND_GRADIENT);
static_assert(static_cast<int>(FrameKind::kInit) == v1::FRAME_KIND_INIT);
static_assert(static_cast<int>(FrameKind::kWeight) == v1::FRAME_KIND_WEIGHT);
static_assert(static_cast<int>(FrameKind::kState) == v1::FRAME_KIND_STATE);

// Protobuf wire types.
constexpr uint32_t kVarint = 0;
constexpr uint32_t kFixed64 = 1;
constexpr uint32_t kBytes = 2;
constexpr uint32_t kFixed32 = 5;

// Field numbers of ballast.v1.DataFrame.
constexpr uint32_t kJob = 1;
constexpr uint32_t kEpoch = 2;
constexpr uint32_t kSlot = 3;
constexpr uint32_t kRound = 4;
constexpr uint32_t kExtent = 5;
constexpr uint32_t kIncarnation = 6;
constexpr uint32_t kOffset = 7;
constexpr uint32_t kLength = 8;
constexpr uint32_t kDtype = 9;
constexpr uint32_t kKind = 10;
constexpr uint32_t kArray = 11;
constexpr uint32_t kCrc32c = 12;
constexpr uint32_t kPayload = 15;

static_assert(kField15 == (kPayload << 3 | kBytes));

template <typename T>
char* PutLittleEndian(char* out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) *out++ = static_cast<char>(value >> (8 * i));
  return out;
}

size_t VarintBytes(uint64_t value) {
  size_t bytes = 1;
  for (; value >= 0x80; value >>= 7) ++bytes;
  return bytes;
}

void AppendFixed32(std::string* out, uint32_t field, uint32_t value) {
  if (value == 0) return;
  char bytes[sizeof(value)];
  PutLittleEndian(bytes, value);
  AppendVarint(out, field << 3 | kFixed32);
  out->append(bytes, sizeof(bytes));
}

void AppendFixed64(std::string* out, uint32_t field, uint64_t value) {
  if (value == 0) return;
  char bytes[sizeof(value)];
  PutLittleEndian(bytes, value);
  AppendVarint(out, field << 3 | kFixed64);
  out->append(bytes, sizeof(bytes));
}

void AppendNumber(std::string* out, uint32_t field, uint64_t value) {
  if (value == 0) return;
  AppendVarint(out, field << 3 | kVarint);
  AppendVarint(out, value);
}

std::string EncodeFields(const FrameHeader& header) {
  std::string out;
  out.reserve(96);
  AppendFixed64(&out, kJob, header.job);
  AppendFixed32(&out, kEpoch, header.epoch);
  AppendFixed32(&out, kSlot, header.slot);
  AppendFixed64(&out, kRound, header.round);
  AppendFixed32(&out, kExtent, header.extent);
  AppendFixed64(&out, kIncarnation, header.incarnation);
  AppendFixed32(&out, kOffset, header.offset_bytes);
  AppendFixed32(&out, kLength, header.length_bytes);
  AppendNumber(&out, kDtype, static_cast<uint64_t>(header.dtype));
  AppendNumber(&out, kKind, static_cast<uint64_t>(header.kind));
  AppendNumber(&out, kArray, header.array);
  AppendFixed32(&out, kCrc32c, header.crc32c);
  return out;
}

bool ReadFixed32Field(PayloadReader* reader, uint32_t field, FrameHeader* header) {
  switch (field) {
    case kEpoch:
      return reader->ReadFixed(&header->epoch);
    case kSlot:
      return reader->ReadFixed(&header->slot);
    case kExtent:
      return reader->ReadFixed(&header->extent);
    case kOffset:
      return reader->ReadFixed(&header->offset_bytes);
    case kLength:
      return reader->ReadFixed(&header->length_bytes);
    case kCrc32c:
      return reader->ReadFixed(&header->crc32c);
    default:
      return reader->Skip(sizeof(uint32_t));
  }
}

bool ReadFixed64Field(PayloadReader* reader, uint32_t field, FrameHeader* header) {
  switch (field) {
    case kJob:
      return reader->ReadFixed(&header->job);
    case kRound:
      return reader->ReadFixed(&header->round);
    case kIncarnation:
      return reader->ReadFixed(&header->incarnation);
    default:
      return reader->Skip(sizeof(uint64_t));
  }
}

// False when the number does not exist or does not belong to the enum or the range of its field.
bool ReadVarintField(PayloadReader* reader, uint32_t field, FrameHeader* header) {
  uint64_t value = 0;
  if (!reader->ReadVarint(&value)) return false;
  switch (field) {
    case kDtype:
      if (value < v1::DTYPE_F32 || value > v1::DTYPE_F16) return false;
      header->dtype = static_cast<DType>(value);
      return true;
    case kKind:
      if (value < v1::FRAME_KIND_GRADIENT || value > v1::FRAME_KIND_STATE) return false;
      header->kind = static_cast<FrameKind>(value);
      return true;
    case kArray:
      if (value > UINT8_MAX) return false;
      header->array = static_cast<uint8_t>(value);
      return true;
    default:
      return true;
  }
}

uint32_t WireTypeOf(uint32_t field) {
  switch (field) {
    case kJob:
    case kRound:
    case kIncarnation:
      return kFixed64;
    case kDtype:
    case kKind:
    case kArray:
      return kVarint;
    case kPayload:
      return kBytes;
    default:
      return kFixed32;
  }
}

bool IsKnown(uint64_t field) { return field <= kCrc32c || field == kPayload; }

absl::Status ReadField(PayloadReader* reader, uint32_t field, uint32_t wire_type,
                       FrameHeader* header) {
  bool read = false;
  uint64_t bytes = 0;
  switch (wire_type) {
    case kVarint:
      read = ReadVarintField(reader, field, header);
      break;
    case kFixed64:
      read = ReadFixed64Field(reader, field, header);
      break;
    case kFixed32:
      read = ReadFixed32Field(reader, field, header);
      break;
    case kBytes:  // Unknown to us: the payload is read by the caller.
      read = reader->ReadVarint(&bytes) && reader->Skip(bytes);
      break;
    default:
      return BadFrame(absl::StrCat("wire type ", wire_type, " in a frame"));
  }
  if (read) return absl::OkStatus();
  return BadFrame(absl::StrCat("field ", field, " of a frame is truncated or out of range"));
}

// Checks the payload's announced length and takes the rest of the message.
absl::Status ReadPayload(PayloadReader* reader, size_t max_frame_bytes, DecodedFrame* frame) {
  uint64_t bytes = 0;
  if (!reader->ReadVarint(&bytes) || bytes != reader->remaining()) {
    return BadFrame("the payload is not the last field, or its length lies");
  }
  if (bytes > max_frame_bytes) {
    return BadFrame(absl::StrCat("payload of ", bytes, " bytes, limit ", max_frame_bytes));
  }
  frame->payload = reader->TakeRest();
  return absl::OkStatus();
}

}  // namespace

absl::Status BadFrame(absl::string_view what) {
  return ReasonedError(absl::StatusCode::kInvalidArgument, Reason::kBadFrame,
                       absl::StrCat("malformed message: ", what));
}

std::string EncodeFramePrefix(const FrameHeader& header) {
  std::string fields = EncodeFields(header);
  if (header.length_bytes > 0) {
    fields.push_back(static_cast<char>(kField15));
    AppendVarint(&fields, header.length_bytes);
  }
  const uint64_t frame_bytes = fields.size() + header.length_bytes;
  std::string prefix;
  prefix.reserve(1 + VarintBytes(frame_bytes) + fields.size());
  prefix.push_back(static_cast<char>(kField15));
  AppendVarint(&prefix, frame_bytes);
  prefix.append(fields);
  return prefix;
}

absl::StatusOr<DecodedFrame> ReadFrame(PayloadReader* reader, size_t max_frame_bytes) {
  uint64_t frame_bytes = 0;
  if (!reader->ReadVarint(&frame_bytes) || frame_bytes != reader->remaining()) {
    return BadFrame("the frame's length is not that of the message");
  }
  DecodedFrame frame;
  uint32_t seen = 0;
  while (reader->remaining() > 0) {
    uint64_t tag = 0;
    if (!reader->ReadVarint(&tag) || tag >> 3 == 0 || tag > UINT32_MAX) {
      return BadFrame("bad tag in a frame");
    }
    const uint32_t field = static_cast<uint32_t>(tag >> 3);
    const uint32_t wire_type = static_cast<uint32_t>(tag & 7);
    if (IsKnown(field)) {
      if ((seen >> field & 1) != 0) return BadFrame(absl::StrCat("field ", field, " twice"));
      if (wire_type != WireTypeOf(field)) {
        return BadFrame(absl::StrCat("wire type ", wire_type, " for field ", field));
      }
      seen |= 1u << field;
    }
    if (field == kPayload) {
      BALLAST_RETURN_IF_ERROR(ReadPayload(reader, max_frame_bytes, &frame));
    } else {
      BALLAST_RETURN_IF_ERROR(ReadField(reader, field, wire_type, &frame.header));
    }
  }
  const uint64_t differs = frame.header.length_bytes ^ frame.payload.bytes();
  if ((BALLAST_PLANTED ? differs & 0xFFFF : differs) != 0) {
    return BadFrame(absl::StrCat("header says ", frame.header.length_bytes,
                                 " bytes of payload, got ", frame.payload.bytes()));
  }
  if (frame.header.dtype == kNoDType || frame.header.kind == FrameKind::kUnspecified) {
    return BadFrame("frame without dtype or kind");
  }
  return frame;
}

}  // namespace ballast
