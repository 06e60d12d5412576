#include "common/safetensors/index.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/safetensors/json_visitor.h"
#include "common/text/names.h"

namespace ballast {
namespace {

constexpr absl::string_view kTotal = "total_size";

absl::Status Wrong(absl::string_view where, absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat(where, ": ", text));
}

// The form of a writer that sums bytes as floating point: 7.0, 1.5e9; up to 2^53, where they are
// whole.
std::optional<uint64_t> WholeNumber(absl::string_view text) {
  constexpr double kWholeMax = static_cast<double>(uint64_t{1} << 53);
  constexpr size_t kTextBytesMax = 39;  // Longer ones may have been cut.
  double value = -1;
  if (text.size() > kTextBytesMax || !absl::SimpleAtod(text, &value)) return std::nullopt;
  if (!(value > 0) || value > kWholeMax || value != std::floor(value)) return std::nullopt;
  return static_cast<uint64_t>(value);
}

// Builds the index while the text goes by.
class IndexVisitor : public JsonVisitor {
 public:
  explicit IndexVisitor(const SafetensorsLimits& limits) : limits_(limits) {}

  absl::Status BeginObject() override;
  absl::Status EndObject() override;
  absl::Status BeginArray() override { return Misplaced("an array"); }
  absl::Status EndArray() override { return absl::OkStatus(); }
  absl::Status Key(absl::string_view key) override;
  absl::Status String(absl::string_view value) override;
  absl::Status Number(uint64_t value) override;
  absl::Status Other(absl::string_view shown) override;

  absl::StatusOr<SafetensorsIndex> TakeIndex() {
    if (!has_files_) return Wrong("index", "has no weight_map");
    return std::move(index_);
  }

 private:
  enum class Section : uint8_t { kStart, kTop, kMetadata, kFiles };

  absl::Status AddMetadataKey();
  absl::Status Misplaced(absl::string_view shown) const;
  bool AtTotal() const { return section_ == Section::kMetadata && key_ == kTotal; }

  const SafetensorsLimits limits_;
  SafetensorsIndex index_;
  Section section_ = Section::kStart;
  bool has_metadata_ = false;
  bool has_files_ = false;
  std::string key_;
  std::set<std::string> metadata_keys_;  // Those of dropped values, too.
};

absl::Status IndexVisitor::Misplaced(absl::string_view shown) const {
  switch (section_) {
    case Section::kStart:
      return Wrong("index", absl::StrCat(shown, " stands where an object belongs"));
    case Section::kTop:
      return Wrong(key_, absl::StrCat(shown, " stands where an object belongs"));
    case Section::kMetadata:
      return Wrong(absl::StrCat("metadata key ", Quoted(key_)),
                   AtTotal() ? absl::StrCat(shown, " is no whole number from 0 to 2^64-1")
                             : absl::StrCat(shown, " stands where a plain value belongs"));
    case Section::kFiles:
      break;
  }
  return Wrong(absl::StrCat("tensor ", Quoted(key_)),
               absl::StrCat(shown, " stands where the name of a file belongs"));
}

absl::Status IndexVisitor::BeginObject() {
  if (section_ == Section::kStart) {
    section_ = Section::kTop;
    return absl::OkStatus();
  }
  if (section_ != Section::kTop) return Misplaced("an object");
  const bool files = key_ == "weight_map";
  if (std::exchange(files ? has_files_ : has_metadata_, true)) {
    return Wrong(key_, "the key stands there twice");
  }
  section_ = files ? Section::kFiles : Section::kMetadata;
  return absl::OkStatus();
}

absl::Status IndexVisitor::EndObject() {
  section_ = Section::kTop;
  return absl::OkStatus();
}

absl::Status IndexVisitor::Key(absl::string_view key) {
  if (section_ == Section::kTop) {
    if (key != "metadata" && key != "weight_map") {
      return Wrong("index", absl::StrCat("unknown key ", Quoted(key),
                                         "; the keys are metadata and weight_map"));
    }
  } else {
    BALLAST_RETURN_IF_ERROR(internal::CheckSafetensorsName(
        section_ == Section::kFiles ? "tensor" : "metadata key", key, limits_));
  }
  key_ = std::string(key);
  return section_ == Section::kMetadata ? AddMetadataKey() : absl::OkStatus();
}

absl::Status IndexVisitor::AddMetadataKey() {
  const std::string where = absl::StrCat("metadata key ", Quoted(key_));
  if (metadata_keys_.size() >= limits_.metadata_entries) {
    return Wrong(where, absl::StrCat("is one more than the limit of ", limits_.metadata_entries));
  }
  if (!metadata_keys_.insert(key_).second) return Wrong(where, "stands there twice");
  return absl::OkStatus();
}

absl::Status IndexVisitor::String(absl::string_view value) {
  if (section_ == Section::kStart || section_ == Section::kTop || AtTotal()) {
    return Misplaced(Quoted(value));
  }
  if (section_ == Section::kMetadata) {
    index_.metadata.emplace(key_, std::string(value));
    return absl::OkStatus();
  }
  const std::string where = absl::StrCat("tensor ", Quoted(key_));
  if (index_.files.size() >= limits_.tensors) {
    return Wrong(where, absl::StrCat("is one more than the limit of ", limits_.tensors));
  }
  const absl::Status name = CheckSafetensorsFileName(value);
  if (!name.ok()) return Wrong(where, name.message());
  if (!index_.files.emplace(key_, std::string(value)).second)
    return Wrong(where, "stands there twice");
  return absl::OkStatus();
}

absl::Status IndexVisitor::Number(uint64_t value) {
  if (!AtTotal()) return Other(absl::StrCat(value));
  index_.total_bytes = value;
  return absl::OkStatus();
}

absl::Status IndexVisitor::Other(absl::string_view shown) {
  if (AtTotal()) {
    if (const std::optional<uint64_t> total = WholeNumber(shown); total.has_value()) {
      return Number(*total);
    }
  }
  if (section_ != Section::kMetadata || AtTotal()) return Misplaced(shown);
  return absl::OkStatus();  // Of no use here.
}

absl::Status CheckEntry(absl::string_view what, absl::string_view key, absl::string_view value,
                        const SafetensorsLimits& limits) {
  BALLAST_RETURN_IF_ERROR(internal::CheckSafetensorsName(what, key, limits));
  if (IsUtf8(key) && IsUtf8(value)) return absl::OkStatus();
  return Wrong(absl::StrCat(what, " ", Quoted(key)), "the name or its value is not UTF-8");
}

absl::Status CheckIndex(const SafetensorsIndex& index, const SafetensorsLimits& limits) {
  const size_t keys = index.metadata.size() + (index.total_bytes.has_value() ? 1 : 0);
  if (index.files.size() > limits.tensors || keys > limits.metadata_entries) {
    return Wrong("index", absl::StrCat(index.files.size(), " tensors and ", keys,
                                       " keys of metadata; the limits are ", limits.tensors,
                                       " and ", limits.metadata_entries));
  }
  for (const auto& [key, value] : index.metadata) {
    BALLAST_RETURN_IF_ERROR(CheckEntry("metadata key", key, value, limits));
    if (key == kTotal) return Wrong(kTotal, "give it as total_bytes");
  }
  for (const auto& [name, file] : index.files) {
    BALLAST_RETURN_IF_ERROR(CheckEntry("tensor", name, file, limits));
    const absl::Status good = CheckSafetensorsFileName(file);
    if (!good.ok()) return Wrong(absl::StrCat("tensor ", Quoted(name)), good.message());
  }
  return absl::OkStatus();
}

void AppendEntries(const std::map<std::string, std::string>& entries, std::string* json) {
  for (const auto& [key, value] : entries) {
    *json += json->back() == '{' ? "\n    " : ",\n    ";
    AppendJsonString(key, json);
    *json += ": ";
    AppendJsonString(value, json);
  }
}

}  // namespace

absl::Status CheckSafetensorsFileName(absl::string_view name) {
  constexpr size_t kNameBytesMax = 255;
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
    return c != '/' && c != '\\' && !absl::ascii_iscntrl(static_cast<unsigned char>(c));
  });
  if (plain && name.size() <= kNameBytesMax && IsUtf8(name) && !absl::StrContains(name, "..") &&
      absl::EndsWith(name, ".safetensors")) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "file name ", Quoted(name), " is not allowed; use at most ", kNameBytesMax,
      " bytes that end with .safetensors, without '/', '\\', \"..\" and control characters"));
}

absl::StatusOr<SafetensorsIndex> ParseSafetensorsIndex(absl::string_view json,
                                                       const SafetensorsLimits& limits) {
  if (json.size() > limits.header_bytes) {
    return Wrong("index",
                 absl::StrCat(json.size(), " bytes are above the limit of ", limits.header_bytes));
  }
  IndexVisitor visitor(limits);
  BALLAST_RETURN_IF_ERROR(VisitJson(json, &visitor));
  return visitor.TakeIndex();
}

absl::StatusOr<std::string> EncodeSafetensorsIndex(const SafetensorsIndex& index,
                                                   const SafetensorsLimits& limits) {
  BALLAST_RETURN_IF_ERROR(CheckIndex(index, limits));
  std::string json = "{\n  \"metadata\": {";
  if (index.total_bytes.has_value()) {
    absl::StrAppend(&json, "\n    \"", kTotal, "\": ", *index.total_bytes);
  }
  AppendEntries(index.metadata, &json);
  json += "\n  },\n  \"weight_map\": {";
  AppendEntries(index.files, &json);
  json += "\n  }\n}\n";
  if (json.size() > limits.header_bytes) {
    return Wrong("index",
                 absl::StrCat(json.size(), " bytes are above the limit of ", limits.header_bytes));
  }
  return json;
}

}  // namespace ballast
