// EncodeSafetensorsHeader of header.h.
// Comes from: writer.h. Goes to: the first bytes of a file. Thread safety: a pure function.
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/safetensors/header.h"
#include "common/safetensors/json_visitor.h"
#include "common/text/names.h"

namespace ballast {
namespace {

constexpr uint64_t kFileBytesMax = std::numeric_limits<int64_t>::max();

absl::Status CheckText(absl::string_view what, absl::string_view text) {
  if (IsUtf8(text)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " ", Quoted(text), " is not UTF-8"));
}

absl::Status CheckTensor(const TensorEntry& tensor, const SafetensorsLimits& limits) {
  BALLAST_RETURN_IF_ERROR(internal::CheckSafetensorsName("tensor", tensor.name, limits));
  BALLAST_RETURN_IF_ERROR(CheckText("tensor", tensor.name));
  if (tensor.name == kSafetensorsMetadataKey) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", Quoted(tensor.name), ": the format keeps this name for itself"));
  }
  if (tensor.shape.size() > limits.rank) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(tensor.name), ": has ",
                                                   tensor.shape.size(),
                                                   " dimensions, the limit is ", limits.rank));
  }
  return absl::OkStatus();
}

absl::Status CheckMetadata(const std::map<std::string, std::string>& metadata,
                           const SafetensorsLimits& limits) {
  if (metadata.size() > limits.metadata_entries) {
    return absl::InvalidArgumentError(absl::StrCat(kSafetensorsMetadataKey, ": has ",
                                                   metadata.size(), " keys, the limit is ",
                                                   limits.metadata_entries));
  }
  for (const auto& [key, value] : metadata) {
    BALLAST_RETURN_IF_ERROR(internal::CheckSafetensorsName("metadata key", key, limits));
    BALLAST_RETURN_IF_ERROR(CheckText("metadata key", key));
    BALLAST_RETURN_IF_ERROR(CheckText("metadata value", value));
  }
  return absl::OkStatus();
}

// Sets begin and end.
absl::Status PlaceTensors(std::vector<TensorEntry>* tensors) {
  uint64_t end = 0;
  for (TensorEntry& tensor : *tensors) {
    const absl::StatusOr<uint64_t> bytes = SafetensorBytes(tensor.dtype, tensor.shape);
    if (!bytes.ok() || *bytes > kFileBytesMax - end) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", Quoted(tensor.name), ": shape [", absl::StrJoin(tensor.shape, ", "), "] of ",
          SafeDTypeName(tensor.dtype), " makes the file larger than 2^63-1 bytes"));
    }
    tensor.begin = end;
    end += *bytes;
    tensor.end = end;
  }
  return absl::OkStatus();
}

void AppendTensor(const TensorEntry& tensor, std::string* json) {
  AppendJsonString(tensor.name, json);
  absl::StrAppend(json, ":{\"dtype\":\"", SafeDTypeName(tensor.dtype), "\",\"shape\":[",
                  absl::StrJoin(tensor.shape, ","), "],\"data_offsets\":[", tensor.begin, ",",
                  tensor.end, "]}");
}

std::string Json(const SafetensorsHeader& header) {
  std::string json = "{";
  if (!header.metadata.empty()) {
    AppendJsonString(kSafetensorsMetadataKey, &json);
    json += ":{";
    for (const auto& [key, value] : header.metadata) {
      if (json.back() != '{') json += ",";
      AppendJsonString(key, &json);
      json += ":";
      AppendJsonString(value, &json);
    }
    json += "}";
  }
  for (const TensorEntry& tensor : header.tensors) {
    if (json.back() != '{') json += ",";
    AppendTensor(tensor, &json);
  }
  json += "}";
  return json;
}

absl::Status CheckAlignment(uint64_t alignment) {
  if (alignment != 0 && alignment % kSafetensorsAlignment == 0 &&
      alignment <= kSafetensorsAlignmentMax) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("data_alignment of ", alignment,
                                                 " is no multiple of ", kSafetensorsAlignment,
                                                 " up to ", kSafetensorsAlignmentMax));
}

// The length of the JSON text, the text, and blanks up to the data.
std::string HeadBytes(const std::string& json, uint64_t json_bytes, uint64_t data_offset) {
  std::string bytes;
  bytes.reserve(data_offset);
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(json_bytes >> (8 * i)));
  bytes += json;
  bytes.resize(data_offset, ' ');
  return bytes;
}

}  // namespace

absl::StatusOr<SafetensorsHead> EncodeSafetensorsHeader(std::vector<TensorEntry> tensors,
                                                        std::map<std::string, std::string> metadata,
                                                        const SafetensorsEncodeOptions& options) {
  const uint64_t alignment = options.data_alignment;
  BALLAST_RETURN_IF_ERROR(CheckAlignment(alignment));
  const SafetensorsLimits& limits = options.limits;
  if (tensors.size() > limits.tensors) {
    return absl::InvalidArgumentError(
        absl::StrCat(tensors.size(), " tensors are above the limit of ", limits.tensors,
                     " for one file; spread them over several"));
  }
  for (const TensorEntry& tensor : tensors) BALLAST_RETURN_IF_ERROR(CheckTensor(tensor, limits));
  BALLAST_RETURN_IF_ERROR(internal::CheckSafetensorsNamesDiffer(tensors));
  BALLAST_RETURN_IF_ERROR(CheckMetadata(metadata, limits));
  BALLAST_RETURN_IF_ERROR(PlaceTensors(&tensors));

  SafetensorsHeader header = {.tensors = std::move(tensors), .metadata = std::move(metadata)};
  const std::string json = Json(header);
  const uint64_t head_bytes = sizeof(uint64_t) + json.size();
  header.data_offset = (head_bytes + alignment - 1) / alignment * alignment;
  const uint64_t json_bytes = header.data_offset - sizeof(uint64_t);
  if (json_bytes > limits.header_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("header of ", json_bytes, " bytes is above the limit of ", limits.header_bytes,
                     "; spread the tensors over several files"));
  }
  if (header.file_bytes() > kFileBytesMax) {
    return absl::InvalidArgumentError("the file would be larger than 2^63-1 bytes");
  }
  std::string bytes = HeadBytes(json, json_bytes, header.data_offset);
  return SafetensorsHead{.bytes = std::move(bytes), .header = std::move(header)};
}

}  // namespace ballast
