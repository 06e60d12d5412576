// The schema's content (server.proto and the rules on its fields) for one field: names, texts of
// values, bounds. All knowledge about single fields lives here; load, validate, print and
// reference only walk.
// Comes from: load, validate, print, reference. Goes to: the descriptors of Ballast::proto.
// Thread safety: pure functions over immutable descriptors, except the setters, which write to
// their message.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "ballast/config/v1/options.pb.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

namespace ballast::config {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// One field that can be set from outside the file: "storage.dram_budget" and its section.
struct Leaf {
  std::string path;
  std::string env;                 // BALLAST_STORAGE_DRAM_BUDGET
  const FieldDescriptor* section;  // null for fields of the top level
  const FieldDescriptor* field;    // a scalar, or a list of messages
};

// Every leaf of ServerConfig, in schema order.
const std::vector<Leaf>& Leaves();

const v1::FieldRule& RuleOf(const FieldDescriptor* field);

// "BALLAST_LISTEN_" for the section "listen".
std::string SectionEnvPrefix(const FieldDescriptor* section);

// Names of the fields of a message, in schema order.
std::vector<std::string> FieldNames(const Descriptor* type);

// The lower-case texts of an enum field, in number order.
std::vector<std::string> EnumTexts(const FieldDescriptor* field);

// Joins a section's path and a name with a dot.
std::string JoinPath(absl::string_view path, absl::string_view name);

// Reads `text` into the scalar `field` of `message`, and checks the field's rule. `quoted` says
// that a YAML file had quotes around it: then it is no number and no bool. INVALID_ARGUMENT with a
// message to follow "path: "; the message is then unchanged.
absl::Status SetScalar(absl::string_view text, bool quoted, const FieldDescriptor* field,
                       Message* message);

// Checks the present (or default) value of a scalar field against its rule: bounds, accepted
// texts, no control characters. INVALID_ARGUMENT as above.
absl::Status CheckRule(const Message& message, const FieldDescriptor* field);

// The value as a user would write it: 64MiB, 2500ms, true, warn; strings without quotes.
std::string ValueText(const Message& message, const FieldDescriptor* field);

// The bounds for people: "4KiB to 32MiB, or 0: one per core"; "" when there are none.
std::string RangeText(const FieldDescriptor* field);

// Writes the default of every scalar into `message` and its sections, so that nothing is unset.
void FillDefaults(Message* message);

}  // namespace ballast::config
