#include "tools/commands/config_schema.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/config/fields.h"
#include "server/config/load.h"
#include "server/status/status_text.h"

namespace ballast::tools {
namespace {

using config::Descriptor;
using config::FieldDescriptor;
using config::Message;
using server::JsonText;

std::string ObjectSchema(const Descriptor* type, const Message& defaults);

std::string TextList(const std::vector<std::string>& texts) {
  const auto quoted = [](std::string* out, const std::string& text) { *out += JsonText(text); };
  return absl::StrCat("[", absl::StrJoin(texts, ", ", quoted), "]");
}

// The type of a scalar. Sizes and durations are texts with a unit, or numbers.
std::string TypeOf(const FieldDescriptor* field) {
  const auto& rule = config::RuleOf(field);
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL) return "\"type\": \"boolean\"";
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
    return absl::StrCat("\"enum\": ", TextList(config::EnumTexts(field)));
  }
  if (rule.one_of_size() > 0) {
    return absl::StrCat("\"enum\": ", TextList({rule.one_of().begin(), rule.one_of().end()}));
  }
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) return "\"type\": \"string\"";
  return rule.unit() == config::v1::NONE ? "\"type\": \"number\""
                                         : "\"type\": [\"string\", \"integer\"]";
}

std::string DefaultOf(const FieldDescriptor* field, const Message& defaults) {
  const std::string text = config::ValueText(defaults, field);
  const bool literal = field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL ||
                       (field->cpp_type() != FieldDescriptor::CPPTYPE_STRING &&
                        field->cpp_type() != FieldDescriptor::CPPTYPE_ENUM &&
                        config::RuleOf(field).unit() == config::v1::NONE);
  return absl::StrCat(", \"default\": ", literal ? text : JsonText(text));
}

std::string FieldSchema(const FieldDescriptor* field, const Message& owner) {
  if (field->is_repeated()) {
    const Message* element =
        google::protobuf::MessageFactory::generated_factory()->GetPrototype(field->message_type());
    return absl::StrCat(
        "{\"description\": ", JsonText(config::RuleOf(field).doc()),
        ", \"type\": \"array\", \"items\": ", ObjectSchema(field->message_type(), *element), "}");
  }
  if (field->message_type() != nullptr) {
    return ObjectSchema(field->message_type(), owner.GetReflection()->GetMessage(owner, field));
  }
  const std::string range = config::RangeText(field);
  const std::string doc = absl::StrCat(config::RuleOf(field).doc(),
                                       range.empty() ? "" : absl::StrCat(" (", range, ")"));
  return absl::StrCat("{\"description\": ", JsonText(doc), ", ", TypeOf(field),
                      config::RuleOf(field).required() ? "" : DefaultOf(field, owner), "}");
}

std::string ObjectSchema(const Descriptor* type, const Message& defaults) {
  std::vector<std::string> properties;
  std::vector<std::string> required;
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    properties.push_back(absl::StrCat(JsonText(field->name()), ": ", FieldSchema(field, defaults)));
    if (config::RuleOf(field).required()) required.push_back(field->name());
  }
  return absl::StrCat(
      "{\"type\": \"object\", \"additionalProperties\": false, \"required\": ", TextList(required),
      ", \"properties\": {", absl::StrJoin(properties, ",\n"), "}}");
}

}  // namespace

std::string ConfigSchema() {
  const config::ServerConfig defaults = config::DefaultConfig();
  return absl::StrCat("{\"$schema\": \"https://json-schema.org/draft/2020-12/schema\",\n",
                      "\"title\": \"Configuration of ballastd\",\n",
                      ObjectSchema(config::ServerConfig::descriptor(), defaults).substr(1), "\n");
}

}  // namespace ballast::tools
