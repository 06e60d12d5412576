// The memory that a serialized message would take, before any of it is allocated: a walk over its
// wire form along its type. Two bytes of an empty submessage become a hundred in memory, so the
// length of a message is no bound of its cost.
// Comes from: ParseMessage, server/rpc. Goes to: protobuf, which parses messages found cheap
// enough. Thread safety: pure functions. Source: https://protobuf.dev/programming-guides/encoding/
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/bytes/payload.h"
#include "google/protobuf/message_lite.h"

namespace ballast {

// Nesting of messages; ours have at most six.
inline constexpr int kWireDepthMax = 16;
// Elements of one repeated field of messages or strings: a manifest's tensors.
inline constexpr size_t kWireElementsMax = 1 << 20;
// A message of `bytes` may take four times as much, and 96 MiB on top: a manifest of a million
// tensors with names of 20 bytes is 36 MB and takes 226 MB.
inline constexpr size_t WireMemoryMax(size_t bytes) { return 4 * bytes + (size_t{96} << 20); }

// The memory, in bytes and from above, that parsing `bytes` into a message like `like` takes. Stops
// at the first excess. Costs one pass, no allocation by length. Errors: INVALID_ARGUMENT BAD_FRAME
// for bytes that end in the middle, groups, and more than the limits above; the message names the
// limit.
absl::StatusOr<size_t> ScanWire(const Payload& bytes, const google::protobuf::MessageLite& like);

// Parses the field `number` of the outermost message alone, a message that goes into `field`;
// repeated occurrences are merged. Errors: as ScanWire, and for bytes other than such a message.
absl::Status ParseFieldAlone(const Payload& bytes, int number,
                             google::protobuf::MessageLite* field);

// Parses all of it, without a copy of the bytes in between. INVALID_ARGUMENT BAD_FRAME when they
// are no such message.
absl::Status ParseScanned(const Payload& bytes, google::protobuf::MessageLite* message);

}  // namespace ballast
