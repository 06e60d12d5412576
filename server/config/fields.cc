// Single fields of the schema. See fields.h.
#include "server/config/fields.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ballast/config/v1/server.pb.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/text/names.h"
#include "common/text/units.h"
#include "server/config/error_list.h"
#include "server/config/yaml_tree.h"

namespace ballast::config {
namespace {

std::string EnvName(absl::string_view path) {
  std::string name = absl::StrCat("BALLAST_", absl::AsciiStrToUpper(path));
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

std::vector<Leaf> BuildLeaves() {
  std::vector<Leaf> leaves;
  const Descriptor* root = v1::ServerConfig::descriptor();
  for (int i = 0; i < root->field_count(); ++i) {
    const FieldDescriptor* top = root->field(i);
    if (top->message_type() == nullptr) {
      leaves.push_back({top->name(), EnvName(top->name()), nullptr, top});
      continue;
    }
    for (int j = 0; j < top->message_type()->field_count(); ++j) {
      const FieldDescriptor* field = top->message_type()->field(j);
      const std::string path = JoinPath(top->name(), field->name());
      leaves.push_back({path, EnvName(path), top, field});
    }
  }
  return leaves;
}

// LOG_LEVEL_WARN of enum LogLevel -> "warn".
std::string EnumText(const google::protobuf::EnumValueDescriptor* value) {
  std::string prefix;
  for (const char c : value->type()->name()) {
    if (absl::ascii_isupper(static_cast<unsigned char>(c)) && !prefix.empty()) prefix += '_';
    prefix += absl::ascii_toupper(static_cast<unsigned char>(c));
  }
  prefix += '_';
  BALLAST_CHECK(absl::StartsWith(value->name(), prefix));
  return absl::AsciiStrToLower(value->name().substr(prefix.size()));
}

std::string NumberText(int64_t value, v1::Unit unit) {
  switch (unit) {
    case v1::BYTES:
      return value < 0 ? absl::StrCat(value) : FormatBytes(static_cast<uint64_t>(value));
    case v1::NANOSECONDS:
      return FormatDuration(std::chrono::nanoseconds(value));
    case v1::NONE:
      break;
  }
  return absl::StrCat(value);
}

// Digits only: no sign but '-', no leading zero (YAML 1.1 would call it octal), no exponent.
absl::StatusOr<int64_t> ParseWhole(absl::string_view text) {
  const absl::string_view digits = absl::StartsWith(text, "-") ? text.substr(1) : text;
  const bool all_digits =
      !digits.empty() && std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit);
  if (!all_digits || (digits.size() > 1 && digits[0] == '0')) {
    return absl::InvalidArgumentError(absl::StrCat("expected a whole number, got ", Quoted(text)));
  }
  int64_t value = 0;
  if (!absl::SimpleAtoi(text, &value)) {
    return absl::InvalidArgumentError(absl::StrCat(Quoted(text), " does not fit into 64 bits"));
  }
  return value;
}

absl::StatusOr<int64_t> ParseNumber(absl::string_view text, v1::Unit unit) {
  switch (unit) {
    case v1::BYTES: {
      BALLAST_ASSIGN_OR_RETURN(const uint64_t bytes, ParseBytes(text));
      return static_cast<int64_t>(bytes);  // ParseBytes stays below 2^63
    }
    case v1::NANOSECONDS: {
      BALLAST_ASSIGN_OR_RETURN(const std::chrono::nanoseconds duration, ParseDuration(text));
      return duration.count();
    }
    case v1::NONE:
      break;
  }
  return ParseWhole(text);
}

// A bound of the schema: a rule that does not parse is our own bug.
std::optional<int64_t> Bound(const std::string& text, v1::Unit unit) {
  if (text.empty()) return std::nullopt;
  const absl::StatusOr<int64_t> value = ParseNumber(text, unit);
  BALLAST_CHECK(value.ok());
  return *value;
}

int64_t NumberOf(const Message& message, const FieldDescriptor* field) {
  const auto* reflection = message.GetReflection();
  return field->cpp_type() == FieldDescriptor::CPPTYPE_UINT32
             ? static_cast<int64_t>(reflection->GetUInt32(message, field))
             : reflection->GetInt64(message, field);
}

absl::Status CheckNumber(int64_t value, const FieldDescriptor* field) {
  const v1::FieldRule& rule = RuleOf(field);
  if (value == 0 && rule.has_zero()) return absl::OkStatus();
  const bool is_uint32 = field->cpp_type() == FieldDescriptor::CPPTYPE_UINT32;
  const int64_t type_min = is_uint32 ? 0 : std::numeric_limits<int64_t>::min();
  const int64_t type_max =
      is_uint32 ? std::numeric_limits<uint32_t>::max() : std::numeric_limits<int64_t>::max();
  const int64_t min = Bound(rule.min(), rule.unit()).value_or(type_min);
  const int64_t max = Bound(rule.max(), rule.unit()).value_or(type_max);
  if (value >= min && value <= max) return absl::OkStatus();
  const std::string zero = rule.has_zero() ? absl::StrCat("; 0 means ", rule.zero()) : "";
  return absl::InvalidArgumentError(
      absl::StrCat(NumberText(value, rule.unit()),
                   value < min ? " is below the minimum " : " is above the maximum ",
                   NumberText(value < min ? min : max, rule.unit()), zero));
}

absl::Status CheckString(const std::string& value, const FieldDescriptor* field) {
  if (!IsPlainText(value) || value.find_first_of("\n\r\t") != std::string::npos) {
    return absl::InvalidArgumentError("must be UTF-8 text on one line, without control characters");
  }
  // Also the value of an unterminated quote at the end of a file: the parser accepts it.
  if (absl::StripAsciiWhitespace(value).size() != value.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(value), " begins or ends with a blank; remove it"));
  }
  const auto& choices = RuleOf(field).one_of();
  if (choices.empty() || std::find(choices.begin(), choices.end(), value) != choices.end()) {
    return absl::OkStatus();
  }
  const std::vector<std::string> texts(choices.begin(), choices.end());
  return absl::InvalidArgumentError(absl::StrCat(
      "expected one of \"", absl::StrJoin(texts, "\", \""), "\", got ", Quoted(value)));
}

absl::Status SetEnum(absl::string_view text, const FieldDescriptor* field, Message* message) {
  for (int i = 0; i < field->enum_type()->value_count(); ++i) {
    if (EnumText(field->enum_type()->value(i)) == text) {
      message->GetReflection()->SetEnum(message, field, field->enum_type()->value(i));
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "expected one of ", absl::StrJoin(EnumTexts(field), ", "), ", got ", Quoted(text)));
}

absl::Status SetBool(absl::string_view text, bool quoted, const FieldDescriptor* field,
                     Message* message) {
  if (quoted || (text != "true" && text != "false")) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected true or false, got ", quoted ? "the text " : "", Quoted(text)));
  }
  message->GetReflection()->SetBool(message, field, text == "true");
  return absl::OkStatus();
}

absl::Status SetNumber(absl::string_view text, bool quoted, const FieldDescriptor* field,
                       Message* message) {
  const v1::Unit unit = RuleOf(field).unit();
  if (quoted && unit == v1::NONE) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a whole number, got the text ", Quoted(text)));
  }
  BALLAST_ASSIGN_OR_RETURN(const int64_t value, ParseNumber(text, unit));
  BALLAST_RETURN_IF_ERROR(CheckNumber(value, field));
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_UINT32) {
    message->GetReflection()->SetUInt32(message, field, static_cast<uint32_t>(value));
  } else {
    message->GetReflection()->SetInt64(message, field, value);
  }
  return absl::OkStatus();
}

}  // namespace

const std::vector<Leaf>& Leaves() {
  static const auto* const leaves = new std::vector<Leaf>(BuildLeaves());
  return *leaves;
}

const v1::FieldRule& RuleOf(const FieldDescriptor* field) {
  return field->options().GetExtension(v1::rule);
}

std::string SectionEnvPrefix(const FieldDescriptor* section) {
  return EnvName(section->name()) + "_";
}

std::vector<std::string> FieldNames(const Descriptor* type) {
  std::vector<std::string> names;
  for (int i = 0; i < type->field_count(); ++i) names.push_back(type->field(i)->name());
  return names;
}

std::vector<std::string> EnumTexts(const FieldDescriptor* field) {
  std::vector<std::string> texts;
  for (int i = 0; i < field->enum_type()->value_count(); ++i) {
    texts.push_back(EnumText(field->enum_type()->value(i)));
  }
  return texts;
}

std::string JoinPath(absl::string_view path, absl::string_view name) {
  return path.empty() ? std::string(name) : absl::StrCat(path, ".", name);
}

absl::Status SetScalar(absl::string_view text, bool quoted, const FieldDescriptor* field,
                       Message* message) {
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      BALLAST_RETURN_IF_ERROR(CheckString(std::string(text), field));
      message->GetReflection()->SetString(message, field, std::string(text));
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_BOOL:
      return SetBool(text, quoted, field, message);
    case FieldDescriptor::CPPTYPE_ENUM:
      return SetEnum(text, field, message);
    case FieldDescriptor::CPPTYPE_UINT32:
    case FieldDescriptor::CPPTYPE_INT64:
      return SetNumber(text, quoted, field, message);
    default:
      BALLAST_CHECK(false && "a type that server.proto does not use");
      return absl::InternalError("unreachable");
  }
}

absl::Status CheckRule(const Message& message, const FieldDescriptor* field) {
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return CheckString(message.GetReflection()->GetString(message, field), field);
    case FieldDescriptor::CPPTYPE_UINT32:
    case FieldDescriptor::CPPTYPE_INT64:
      return CheckNumber(NumberOf(message, field), field);
    default:
      return absl::OkStatus();
  }
}

std::string ValueText(const Message& message, const FieldDescriptor* field) {
  const auto* reflection = message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection->GetString(message, field);
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection->GetBool(message, field) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumText(reflection->GetEnum(message, field));
    default:
      return NumberText(NumberOf(message, field), RuleOf(field).unit());
  }
}

std::string RangeText(const FieldDescriptor* field) {
  const v1::FieldRule& rule = RuleOf(field);
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return "true, false";
    case FieldDescriptor::CPPTYPE_ENUM:
      return absl::StrJoin(EnumTexts(field), ", ");
    case FieldDescriptor::CPPTYPE_STRING: {
      std::vector<std::string> texts(rule.one_of().begin(), rule.one_of().end());
      std::replace(texts.begin(), texts.end(), std::string(), std::string("\"\""));
      return absl::StrJoin(texts, ", ");
    }
    case FieldDescriptor::CPPTYPE_UINT32:
    case FieldDescriptor::CPPTYPE_INT64: {
      const std::string range = absl::StrCat(rule.has_min() ? rule.min() : "0", " to ", rule.max());
      return rule.has_zero() ? absl::StrCat(range, "; 0: ", rule.zero()) : range;
    }
    default:
      return "";
  }
}

void FillDefaults(Message* message) {
  const auto* reflection = message->GetReflection();
  const Descriptor* type = message->GetDescriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    if (field->is_repeated()) continue;
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE:
        FillDefaults(reflection->MutableMessage(message, field));
        break;
      case FieldDescriptor::CPPTYPE_STRING:
        reflection->SetString(message, field, field->default_value_string());
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        reflection->SetBool(message, field, field->default_value_bool());
        break;
      case FieldDescriptor::CPPTYPE_ENUM:
        reflection->SetEnum(message, field, field->default_value_enum());
        break;
      case FieldDescriptor::CPPTYPE_UINT32:
        reflection->SetUInt32(message, field, field->default_value_uint32());
        break;
      case FieldDescriptor::CPPTYPE_INT64:
        reflection->SetInt64(message, field, field->default_value_int64());
        break;
      default:
        BALLAST_CHECK(false && "a type that server.proto does not use");
    }
  }
}

}  // namespace ballast::config
