#include "common/safetensors/header.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/faults/planted.h"
#include "common/safetensors/json_visitor.h"
#include "common/text/names.h"

namespace ballast {
namespace {

// Builds the tensors while the text goes by. Its memory is bounded by the limits and by the
// header's bytes; each tensor is checked as it ends.
class HeaderVisitor : public JsonVisitor {
 public:
  explicit HeaderVisitor(const SafetensorsLimits& limits) : limits_(limits) {}

  absl::Status BeginObject() override;
  absl::Status EndObject() override;
  absl::Status BeginArray() override;
  absl::Status EndArray() override;
  absl::Status Key(absl::string_view key) override;
  absl::Status String(absl::string_view value) override;
  absl::Status Number(uint64_t value) override;
  absl::Status Other(absl::string_view shown) override { return Misplaced(shown); }

  SafetensorsHeader TakeHeader() { return std::move(header_); }

 private:
  // Where in the text the next event is.
  enum class Section : uint8_t { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kEnd };
  // The fields of a tensor; bits.
  enum Field : uint8_t { kNone = 0, kDtype = 1, kShapeField = 2, kOffsetsField = 4, kAll = 7 };

  absl::Status BeginTensor();
  absl::Status EndTensor();
  absl::Status KeyOfTensor(absl::string_view key);
  absl::Status KeyOfMetadata(absl::string_view key);
  absl::Status Wrong(absl::string_view text) const;
  absl::Status Misplaced(absl::string_view shown) const;
  std::string Expected() const;

  const SafetensorsLimits limits_;
  SafetensorsHeader header_;
  Section section_ = Section::kStart;
  bool has_metadata_ = false;
  std::string key_;      // of kMetadata, and of kTop until the value has begun
  TensorEntry tensor_;   // of kTensor and below
  uint8_t fields_ = 0;   // seen of tensor_
  Field field_ = kNone;  // whose value comes next
  size_t offsets_ = 0;   // seen of tensor_
};

absl::Status HeaderVisitor::Wrong(absl::string_view text) const {
  const bool metadata = section_ == Section::kMetadata ||
                        (section_ == Section::kTop && key_ == kSafetensorsMetadataKey);
  const std::string where = metadata ? std::string(kSafetensorsMetadataKey)
                            : section_ == Section::kStart
                                ? std::string("header")
                                : absl::StrCat("tensor ", Quoted(tensor_.name));
  return absl::InvalidArgumentError(absl::StrCat(where, ": ", text));
}

std::string HeaderVisitor::Expected() const {
  switch (section_) {
    case Section::kTop:
      return key_ == kSafetensorsMetadataKey ? "an object of strings"
                                             : "an object with dtype, shape and data_offsets";
    case Section::kMetadata:
      return absl::StrCat("a string, the value of ", Quoted(key_), ",");
    case Section::kTensor:
      return field_ == kDtype        ? "a string, the dtype,"
             : field_ == kShapeField ? "an array, the shape,"
                                     : "an array, the data_offsets,";
    case Section::kShape:
      return "a dimension, a whole number from 0 to 2^64-1,";
    case Section::kOffsets:
      return "an offset, a whole number from 0 to 2^64-1,";
    case Section::kStart:
    case Section::kEnd:
      break;
  }
  return "an object";
}

absl::Status HeaderVisitor::Misplaced(absl::string_view shown) const {
  // A writer that calls a tensor "__metadata__" puts these fields here.
  const bool like_tensor =
      section_ == Section::kMetadata && (key_ == "shape" || key_ == "data_offsets");
  return Wrong(absl::StrCat(shown, " stands where ", Expected(), " belongs",
                            like_tensor ? "; no tensor can be called so: give it another name and "
                                          "write the file again"
                                        : ""));
}

absl::Status HeaderVisitor::BeginObject() {
  if (section_ == Section::kStart) {
    section_ = Section::kTop;
    return absl::OkStatus();
  }
  if (section_ != Section::kTop) return Misplaced("an object");
  if (key_ != kSafetensorsMetadataKey) return BeginTensor();
  section_ = Section::kMetadata;
  if (std::exchange(has_metadata_, true)) return Wrong("the key stands there twice");
  return absl::OkStatus();
}

absl::Status HeaderVisitor::BeginTensor() {
  if (header_.tensors.size() >= limits_.tensors) {
    return Wrong(absl::StrCat("the header has more than ", limits_.tensors,
                              " tensors, the limit; spread them over several files"));
  }
  section_ = Section::kTensor;
  fields_ = 0;
  offsets_ = 0;
  return absl::OkStatus();
}

absl::Status HeaderVisitor::EndObject() {
  if (section_ == Section::kTensor) return EndTensor();
  section_ = section_ == Section::kMetadata ? Section::kTop : Section::kEnd;
  return absl::OkStatus();
}

absl::Status HeaderVisitor::EndTensor() {
  for (const auto& [field, name] : {std::pair(kDtype, "dtype"), std::pair(kShapeField, "shape"),
                                    std::pair(kOffsetsField, "data_offsets")}) {
    if ((fields_ & field) == 0) return Wrong(absl::StrCat("has no ", name));
  }
  if (tensor_.end < tensor_.begin) {
    return Wrong(absl::StrCat("data_offsets [", tensor_.begin, ", ", tensor_.end,
                              "] end before they begin"));
  }
  const absl::StatusOr<uint64_t> bytes = SafetensorBytes(tensor_.dtype, tensor_.shape);
  if (!bytes.ok()) return Wrong(bytes.status().message());
  if (*bytes != tensor_.bytes()) {
    return Wrong(absl::StrCat("data_offsets [", tensor_.begin, ", ", tensor_.end, "] span ",
                              tensor_.bytes(), " bytes, but shape [",
                              absl::StrJoin(tensor_.shape, ", "), "] of ",
                              SafeDTypeName(tensor_.dtype), " takes ", *bytes));
  }
  header_.tensors.push_back(std::exchange(tensor_, {}));
  section_ = Section::kTop;
  return absl::OkStatus();
}

absl::Status HeaderVisitor::BeginArray() {
  const bool shape = field_ == kShapeField;
  if (section_ != Section::kTensor || (!shape && field_ != kOffsetsField)) {
    return Misplaced("an array");
  }
  section_ = shape ? Section::kShape : Section::kOffsets;
  return absl::OkStatus();
}

absl::Status HeaderVisitor::EndArray() {
  if (section_ == Section::kOffsets && offsets_ != 2) {
    return Wrong(absl::StrCat("data_offsets holds ", offsets_, " numbers instead of 2"));
  }
  section_ = Section::kTensor;
  return absl::OkStatus();
}

absl::Status HeaderVisitor::Key(absl::string_view key) {
  if (section_ == Section::kTensor) return KeyOfTensor(key);
  if (section_ == Section::kMetadata) return KeyOfMetadata(key);
  BALLAST_RETURN_IF_ERROR(internal::CheckSafetensorsName("tensor", key, limits_));
  key_ = std::string(key);
  tensor_.name = key_;
  return absl::OkStatus();
}

absl::Status HeaderVisitor::KeyOfTensor(absl::string_view key) {
  field_ = key == "dtype"          ? kDtype
           : key == "shape"        ? kShapeField
           : key == "data_offsets" ? kOffsetsField
                                   : kNone;
  if (field_ == kNone) {
    return Wrong(
        absl::StrCat("unknown field ", Quoted(key), "; the fields are dtype, shape, data_offsets"));
  }
  if ((fields_ & field_) != 0) return Wrong(absl::StrCat(key, " stands there twice"));
  fields_ |= field_;
  return absl::OkStatus();
}

absl::Status HeaderVisitor::KeyOfMetadata(absl::string_view key) {
  BALLAST_RETURN_IF_ERROR(internal::CheckSafetensorsName("metadata key", key, limits_));
  key_ = std::string(key);
  return absl::OkStatus();
}

absl::Status HeaderVisitor::String(absl::string_view value) {
  if (section_ == Section::kMetadata) {
    if (header_.metadata.size() >= limits_.metadata_entries) {
      return Wrong(absl::StrCat("has more than ", limits_.metadata_entries, " keys, the limit"));
    }
    if (!header_.metadata.emplace(key_, std::string(value)).second) {
      return Wrong(absl::StrCat("the key ", Quoted(key_), " stands there twice"));
    }
    return absl::OkStatus();
  }
  if (section_ != Section::kTensor || field_ != kDtype) return Misplaced(Quoted(value));
  const absl::StatusOr<SafeDType> dtype = ParseSafeDType(value);
  if (!dtype.ok()) {
    return absl::Status(dtype.status().code(), absl::StrCat("tensor ", Quoted(tensor_.name), ": ",
                                                            dtype.status().message()));
  }
  tensor_.dtype = *dtype;
  return absl::OkStatus();
}

absl::Status HeaderVisitor::Number(uint64_t value) {
  if (section_ == Section::kShape) {
    if (tensor_.shape.size() >= limits_.rank) {
      return Wrong(absl::StrCat("has more than ", limits_.rank, " dimensions, the limit"));
    }
    tensor_.shape.push_back(value);
    return absl::OkStatus();
  }
  if (section_ != Section::kOffsets) return Misplaced(absl::StrCat(value));
  if (offsets_ == 2) return Wrong("data_offsets holds more than 2 numbers");
  (offsets_++ == 0 ? tensor_.begin : tensor_.end) = value;
  return absl::OkStatus();
}

// Brings the tensors into the order of their data and checks that they fill all of it.
absl::Status CheckData(uint64_t data_bytes, SafetensorsHeader* header) {
  const auto before = [](const TensorEntry& a, const TensorEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  };
  // Tensors without bytes may begin at one place: they keep the order of the header.
  if (!std::is_sorted(header->tensors.begin(), header->tensors.end(), before)) {
    std::stable_sort(header->tensors.begin(), header->tensors.end(), before);
  }
  uint64_t end = 0;
  for (const TensorEntry& tensor : header->tensors) {
    if (tensor.begin != end) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", Quoted(tensor.name), ": data_offsets [", tensor.begin, ", ", tensor.end, "] ",
          tensor.begin < end ? "overlap the tensor before, which ends at "
                             : "leave a hole behind the tensor before, which ends at ",
          end));
    }
    end = tensor.end;
  }
  if (end == data_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the file is ", data_bytes < end ? "cut off" : "longer than its header says",
                   ": its tensors have ", end, " bytes, its data section has ", data_bytes,
                   "; fetch or write the file again"));
}

}  // namespace

absl::StatusOr<uint64_t> SafetensorBytes(SafeDType dtype, const std::vector<uint64_t>& shape) {
  uint64_t bytes = SafeDTypeBytes(dtype);
  uint64_t elements = 1;
  bool fits = true;
  for (const uint64_t dimension : shape) {
    const bool above = __builtin_mul_overflow(elements, dimension, &elements);
    fits = fits && (!above || BALLAST_PLANTED);
  }
  if (fits && !__builtin_mul_overflow(bytes, elements, &bytes)) return bytes;
  return absl::InvalidArgumentError(absl::StrCat("shape [", absl::StrJoin(shape, ", "), "] of ",
                                                 SafeDTypeName(dtype),
                                                 " takes 2^64 bytes or more"));
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json,
                                                         uint64_t data_bytes,
                                                         const SafetensorsLimits& limits) {
  if (json.size() > limits.header_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "header of ", json.size(), " bytes is above the limit of ", limits.header_bytes));
  }
  // npos + 1 is 0: nothing but blanks.
  const absl::string_view text = json.substr(0, json.find_last_not_of(' ') + 1);
  if (text.empty() || text.front() != '{' || text.back() != '}') {
    return absl::InvalidArgumentError(
        "the header is not {...} from its first byte on, with only blanks behind it; this is no "
        "safetensors file");
  }
  HeaderVisitor visitor(limits);
  BALLAST_RETURN_IF_ERROR(VisitJson(text, &visitor));
  SafetensorsHeader header = visitor.TakeHeader();
  header.data_offset = sizeof(uint64_t) + json.size();
  BALLAST_RETURN_IF_ERROR(internal::CheckSafetensorsNamesDiffer(header.tensors));
  BALLAST_RETURN_IF_ERROR(CheckData(data_bytes, &header));
  return header;
}

namespace internal {

absl::Status CheckSafetensorsName(absl::string_view what, absl::string_view name,
                                  const SafetensorsLimits& limits) {
  if (name.size() > limits.name_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " ", Quoted(name), ": the limit is ", limits.name_bytes, " bytes"));
  }
  if (name.find('\0') != absl::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " ", Quoted(name), ": a byte 0 stands in it"));
  }
  return absl::OkStatus();
}

absl::Status CheckSafetensorsNamesDiffer(const std::vector<TensorEntry>& tensors) {
  std::vector<const std::string*> names;
  names.reserve(tensors.size());
  for (const TensorEntry& tensor : tensors) names.push_back(&tensor.name);
  std::sort(names.begin(), names.end(),
            [](const std::string* a, const std::string* b) { return *a < *b; });
  const auto twin =
      std::adjacent_find(names.begin(), names.end(),
                         [](const std::string* a, const std::string* b) { return *a == *b; });
  if (twin == names.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("tensor ", Quoted(**twin), ": the name stands there twice"));
}

}  // namespace internal
}  // namespace ballast
