// Reads the part of YAML that configuration needs (and so all of JSON) into a small tree that knows
// lines and columns. Refused: anchors, aliases, tags, duplicate keys, several documents, deep
// nesting, text other than UTF-8. Scalars stay text; the schema says what they mean, so `no` and
// `1e3` have no type of their own here. Comes from: load (text of files and variables). Goes to:
// fields. Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/config/error_list.h"

namespace ballast::config {

constexpr size_t kMaxConfigBytes = 1 << 20;
constexpr int kMaxConfigDepth = 8;

struct YamlNode {
  enum class Kind { kNull, kScalar, kList, kMap };
  Kind kind = Kind::kNull;
  std::string where;  // "file:line:col" of the value
  std::string text;   // of a scalar
  bool quoted = false;
  std::string key;  // when the parent is a map
  std::string key_where;
  std::vector<YamlNode> children;
};

// "a scalar", "a list", ... for messages.
absl::string_view KindName(YamlNode::Kind kind);

// Parses `text`, called `name` in messages. Empty text is a null node. Errors go to `errors`; the
// tree is complete only when none were added.
YamlNode ParseYaml(absl::string_view text, absl::string_view name, ErrorList* errors);

// True when `text` is UTF-8 without control characters other than newline, return and tab.
bool IsPlainText(absl::string_view text);

}  // namespace ballast::config
