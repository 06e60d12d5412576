// The index of weights spread over several safetensors files, as model hubs write it
// ("model.safetensors.index.json"): which tensor is in which file.
//   {"metadata": {"total_size": bytes, ...}, "weight_map": {tensor name: file name}}
// Comes from: importers (untrusted text). Goes to: exporters.
// Thread safety: pure functions over plain values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/safetensors/header.h"

namespace ballast {

// The file's name, next to the files that it lists.
constexpr absl::string_view kSafetensorsIndexName = "model.safetensors.index.json";

struct SafetensorsIndex {
  std::optional<uint64_t> total_bytes;  // "total_size", of all tensors; some writers omit it
  std::map<std::string, std::string> metadata;  // the other strings of "metadata"
  std::map<std::string, std::string> files;     // "weight_map": tensor name -> file name
};

// OK when `name` is safe to be appended to a directory: 1 to 255 bytes of UTF-8 that end with
// ".safetensors" and hold no '/', '\', "..", and no control character. INVALID_ARGUMENT otherwise.
absl::Status CheckSafetensorsFileName(absl::string_view name);

// INVALID_ARGUMENT, with the key and the rule: no JSON object, a key twice, a key other than
// metadata and weight_map, no weight_map, a total_size other than a whole number (7 or 7.0), an
// array or object in the metadata, a file name that CheckSafetensorsFileName refuses, more than
// `limits` allows (header_bytes: of the text). Other numbers and truth values in the metadata are
// dropped. Holds at most 16 times the text's bytes of memory.
absl::StatusOr<SafetensorsIndex> ParseSafetensorsIndex(absl::string_view json,
                                                       const SafetensorsLimits& limits = {});

// The same index gives the same bytes. INVALID_ARGUMENT: what ParseSafetensorsIndex would refuse,
// and a "total_size" in the metadata.
absl::StatusOr<std::string> EncodeSafetensorsIndex(const SafetensorsIndex& index,
                                                   const SafetensorsLimits& limits = {});

}  // namespace ballast
