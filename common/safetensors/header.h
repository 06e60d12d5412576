// The header of a safetensors file, which says what tensors the file holds and where: parsed from
// untrusted bytes, and encoded. Layout of a file, numbers little-endian:
//   u64 N | N bytes of JSON, padded with blanks at its end | data
//   JSON: {"__metadata__": {string: string}, tensor name: {"dtype", "shape", "data_offsets"}}
// Offsets count from the beginning of the data, which the tensors fill without holes. More in
// docs/formats/safetensors.md. Source: README.md of github.com/huggingface/safetensors.
// Comes from: reader.h, writer.h. Goes to: importers and exporters.
// Thread safety: pure functions over plain values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/safetensors/dtype.h"

namespace ballast {

// The key of a header that names no tensor.
constexpr absl::string_view kSafetensorsMetadataKey = "__metadata__";
// Default alignment of the data, and the most a caller may choose.
constexpr uint64_t kSafetensorsAlignment = 8;
constexpr uint64_t kSafetensorsAlignmentMax = uint64_t{1} << 20;

// Limits of a header. The first is the format's own, the others keep hostile headers small: a
// header that keeps them takes at most 16 times its bytes of memory while it is parsed.
struct SafetensorsLimits {
  uint64_t header_bytes = 100'000'000;
  uint32_t tensors = 1'000'000;
  uint32_t name_bytes = 4096;  // of a tensor or a key of the metadata
  uint32_t rank = 64;
  uint32_t metadata_entries = 65'536;
};

struct TensorEntry {
  std::string name;
  SafeDType dtype = SafeDType::kF32;
  std::vector<uint64_t> shape;  // row-major; empty: one element
  uint64_t begin = 0;           // bytes from the beginning of the data
  uint64_t end = 0;

  uint64_t bytes() const { return end - begin; }
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // in the order of their data, without holes between them
  std::map<std::string, std::string> metadata;
  uint64_t data_offset = 0;  // of the data in the file: 8 + N

  // Bytes of the whole file.
  uint64_t file_bytes() const { return data_offset + (tensors.empty() ? 0 : tensors.back().end); }
};

// Bytes of a tensor. INVALID_ARGUMENT when they are 2^64 and more on the way from the first
// dimension to the last.
absl::StatusOr<uint64_t> SafetensorBytes(SafeDType dtype, const std::vector<uint64_t>& shape);

// Parses the N bytes `json` of a file, followed by `data_bytes` bytes. Errors name the tensor, the
// value and the rule:
//   INVALID_ARGUMENT  forbidden by the format, above all: no JSON object from the first byte on,
//                     blanks excepted at the end; invalid UTF-8; a key twice; unknown or missing
//                     fields; a sign, a point or an exponent in a number; a shape that does not fit
//                     the dtype and the offsets; holes, overlaps; data shorter or longer than the
//                     tensors. And what `limits` forbids, and a byte 0 in a name.
//   UNIMPLEMENTED     a dtype of the format that this build does not read
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json,
                                                         uint64_t data_bytes,
                                                         const SafetensorsLimits& limits = {});

struct SafetensorsEncodeOptions {
  // The data begins at a multiple of this: a multiple of 8, at most 1 MiB. kPageBytes for data that
  // goes past the page cache.
  uint64_t data_alignment = kSafetensorsAlignment;
  SafetensorsLimits limits;
};

struct SafetensorsHead {
  std::string bytes;         // the file's beginning, up to its data
  SafetensorsHeader header;  // the header as a reader will find it
};

// Encodes the header of a file that holds `tensors` in this order, one directly after the other;
// their begin and end are overwritten here. The same arguments give the same bytes.
// INVALID_ARGUMENT, with the name and the rule: what ParseSafetensorsHeader would refuse, an
// alignment outside the limits, a file of 2^63 bytes and more.
absl::StatusOr<SafetensorsHead> EncodeSafetensorsHeader(std::vector<TensorEntry> tensors,
                                                        std::map<std::string, std::string> metadata,
                                                        const SafetensorsEncodeOptions& options);

namespace internal {

// OK when `name` is allowed in a header as a tensor's name or (`what`) a key of the metadata.
absl::Status CheckSafetensorsName(absl::string_view what, absl::string_view name,
                                  const SafetensorsLimits& limits);
// OK when no two of `tensors` have the same name.
absl::Status CheckSafetensorsNamesDiffer(const std::vector<TensorEntry>& tensors);

}  // namespace internal
}  // namespace ballast
