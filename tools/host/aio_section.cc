#include "tools/host/aio_section.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <cmath>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace ballast::tools {
namespace {

using google::protobuf::Struct;
using google::protobuf::Value;

constexpr char kParallelism[] = "intra_op_parallelism";
constexpr uint64_t kBlockBytesMax = uint64_t{64} << 20;
constexpr int kQueueDepthMax = 4096;
constexpr uint64_t kPage = 4096;

absl::Status Bad(const std::string& key, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("aio.", key, " ", why));
}

absl::StatusOr<uint64_t> Number(const std::string& key, const Value& value) {
  uint64_t number = 0;
  if (value.kind_case() == Value::kStringValue && absl::SimpleAtoi(value.string_value(), &number)) {
    return number;
  }
  const double real = value.number_value();
  const bool whole = value.kind_case() == Value::kNumberValue && real >= 0 && real < 1e15 &&
                     std::floor(real) == real;
  if (!whole) return Bad(key, "is no whole number");
  return static_cast<uint64_t>(real);
}

absl::Status CheckBoolean(const std::string& key, const Value& value, AioSettings* settings) {
  if (value.kind_case() == Value::kBoolValue) return absl::OkStatus();
  const std::string& text = value.string_value();
  if (value.kind_case() != Value::kStringValue || (text != "true" && text != "false")) {
    return Bad(key, "is neither true nor false");
  }
  settings->warnings.push_back(
      absl::StrCat("aio.", key, " is the text \"", text, "\": DeepSpeed takes any text for true"));
  return absl::OkStatus();
}

absl::Status Take(const std::string& key, const Value& value, AioSettings* settings) {
  static const std::map<std::string, std::string> kAliases = {{"thread_count", kParallelism},
                                                              {"num_threads", kParallelism}};
  const auto alias = kAliases.find(key);
  const std::string& known = alias == kAliases.end() ? key : alias->second;
  if (alias != kAliases.end()) {
    settings->warnings.push_back(absl::StrCat("aio.", key, " means aio.", known,
                                              ": DeepSpeed does not read it under this name"));
  }
  if (known == "single_submit" || known == "overlap_events" || known == "use_gds") {
    return CheckBoolean(key, value, settings);
  }
  if (known != "block_size" && known != "queue_depth" && known != kParallelism) {
    return Bad(key,
               "is unknown; there are block_size, queue_depth, intra_op_parallelism, "
               "single_submit, overlap_events and use_gds");
  }
  BALLAST_ASSIGN_OR_RETURN(const uint64_t number, Number(key, value));
  if (known == "block_size") {
    if (number < kPage || number > kBlockBytesMax || number % kPage != 0) {
      return Bad(key, absl::StrCat("is ", number, "; it takes 4096 to ", kBlockBytesMax,
                                   ", a multiple of 4096"));
    }
    settings->block_bytes = number;
  } else if (number < 1 || number > kQueueDepthMax) {
    return Bad(key, absl::StrCat("is ", number, "; it takes 1 to ", kQueueDepthMax));
  } else if (known == "queue_depth") {
    settings->queue_depth = static_cast<int>(number);
  }
  return absl::OkStatus();
}

absl::StatusOr<Struct> ParseJson(const std::string& text) {
  Struct parsed;
  if (google::protobuf::util::JsonStringToMessage(text, &parsed).ok()) return parsed;
  // In its printed form: "aio": {...}
  const auto status =
      google::protobuf::util::JsonStringToMessage(absl::StrCat("{", text, "}"), &parsed);
  if (status.ok()) return parsed;
  return absl::InvalidArgumentError(absl::StrCat(
      "it is no JSON: ", std::string(status.message().data(), status.message().size())));
}

}  // namespace

absl::StatusOr<AioSettings> ParseAioSettings(const std::string& text) {
  BALLAST_ASSIGN_OR_RETURN(const Struct parsed, ParseJson(text));
  const auto& fields = parsed.fields();
  const auto section = fields.find("aio");
  const bool bare = section == fields.end() && fields.contains("block_size");
  if (section == fields.end() && !bare) {
    return absl::NotFoundError("it has no \"aio\" section");
  }
  if (!bare && section->second.kind_case() != Value::kStructValue) {
    return absl::InvalidArgumentError("\"aio\" is no section in braces");
  }
  AioSettings settings;
  for (const auto& [key, value] : bare ? fields : section->second.struct_value().fields()) {
    BALLAST_RETURN_IF_ERROR(Take(key, value, &settings));
  }
  return settings;
}

}  // namespace ballast::tools
