// Loads the configuration of ballastd. See load.h.
#include "server/config/load.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/text/names.h"
#include "server/config/environment.h"
#include "server/config/error_list.h"
#include "server/config/fields.h"
#include "server/config/json_syntax.h"
#include "server/config/yaml_tree.h"

namespace ballast::config {
namespace {

using Origins = std::map<std::string, std::string>;

// Longer words are no misspelling, and the distance costs their length.
constexpr size_t kMaxSuggestBytes = 64;

std::string Suggestion(absl::string_view word, const std::vector<std::string>& candidates) {
  if (word.size() > kMaxSuggestBytes) return "";
  const std::string near = DidYouMean(word, candidates);
  return near.empty() ? "" : absl::StrCat(" (did you mean \"", near, "\"?)");
}

// "unknown field ..." with the nearest name of this section, else the same name in another
// section, else all names of the section.
std::string UnknownField(const std::string& name, const google::protobuf::Descriptor* type) {
  const std::vector<std::string> names = FieldNames(type);
  std::string hint = Suggestion(name, names);
  for (const Leaf& leaf : Leaves()) {
    if (hint.empty() && leaf.field->name() == name) {
      hint = absl::StrCat(" (did you mean \"", leaf.path, "\"?)");
    }
  }
  if (hint.empty()) hint = absl::StrCat(" (known here: ", absl::StrJoin(names, ", "), ")");
  return absl::StrCat("unknown field ", Quoted(name), hint);
}

// Writes a tree into a message, by the message's descriptor.
class Walker {
 public:
  Walker(ErrorList* errors, Origins* origins) : errors_(errors), origins_(origins) {}

  void WalkMap(const YamlNode& node, const std::string& path, Message* message) {
    if (node.kind == YamlNode::Kind::kNull) return;  // a section with all fields commented out
    if (node.kind != YamlNode::Kind::kMap) {
      Expected(node, path, "a map of fields");
      return;
    }
    for (const YamlNode& child : node.children) {
      const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(child.key);
      if (field == nullptr) {
        const bool shown = !errors_->full();
        errors_->Add(child.key_where,
                     shown ? UnknownField(child.key, message->GetDescriptor()) : "");
        continue;
      }
      WalkField(child, JoinPath(path, child.key), field, message);
    }
  }

  void WalkField(const YamlNode& node, const std::string& path, const FieldDescriptor* field,
                 Message* message) {
    if (field->is_repeated()) {
      WalkList(node, path, field, message);
    } else if (field->message_type() != nullptr) {
      WalkMap(node, path, message->GetReflection()->MutableMessage(message, field));
    } else if (node.kind != YamlNode::Kind::kScalar) {
      Expected(node, path, "a single value");
    } else {
      SetText(node.text, node.quoted, path, node.where, field, message);
    }
  }

  void SetText(const std::string& text, bool quoted, const std::string& path,
               const std::string& where, const FieldDescriptor* field, Message* message) {
    const absl::Status status = SetScalar(text, quoted, field, message);
    if (!status.ok()) {
      errors_->Add(where, absl::StrCat(path, ": ", status.message()));
      return;
    }
    (*origins_)[path] = where;
  }

 private:
  void WalkList(const YamlNode& node, const std::string& path, const FieldDescriptor* field,
                Message* message) {
    if (node.kind != YamlNode::Kind::kList) {
      Expected(node, path, "a list");
      return;
    }
    const auto* reflection = message->GetReflection();
    reflection->ClearField(message, field);
    origins_->erase(origins_->lower_bound(path + "["), origins_->lower_bound(path + "\\"));
    (*origins_)[path] = node.where;
    for (size_t i = 0; i < node.children.size() && !errors_->full(); ++i) {
      const YamlNode& child = node.children[i];
      const std::string element_path = absl::StrCat(path, "[", i, "]");
      if (child.kind != YamlNode::Kind::kMap) {
        Expected(child, element_path, "a map of fields");
        continue;
      }
      Message* element = reflection->AddMessage(message, field);
      WalkMap(child, element_path, element);
      CheckRequired(child, element_path, *element);
    }
  }

  void CheckRequired(const YamlNode& node, const std::string& path, const Message& element) {
    const Descriptor* type = element.GetDescriptor();
    for (int i = 0; i < type->field_count(); ++i) {
      const FieldDescriptor* field = type->field(i);
      if (!RuleOf(field).required()) continue;
      bool present = false;
      for (const YamlNode& child : node.children) present |= child.key == field->name();
      if (!present) {
        errors_->Add(node.where, absl::StrCat(path, ": missing field \"", field->name(), "\""));
      }
    }
  }

  void Expected(const YamlNode& node, const std::string& path, absl::string_view what) {
    const std::string label = path.empty() ? "" : absl::StrCat(path, ": ");
    errors_->Add(node.where, absl::StrCat(label, "expected ", what, ", got ", KindName(node.kind)));
  }

  ErrorList* const errors_;
  Origins* const origins_;
};

// The tree of a file: JSON if named .json, else YAML.
YamlNode ParseFile(absl::string_view text, absl::string_view name, ErrorList* errors) {
  // ParseYaml reports files too large or without text.
  const bool plain = text.size() <= kMaxConfigBytes && IsPlainText(text);
  if (IsJsonName(name) && plain && !CheckJson(text, name, errors)) return YamlNode();
  return ParseYaml(text, name, errors);
}

// Reads at most one byte more than the limit, so that ParseYaml can refuse the rest. `what` names
// it in messages. NOT_FOUND or PERMISSION_DENIED when it cannot be opened.
absl::StatusOr<std::string> ReadText(const std::string& path, absl::string_view what) {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"),
                                                       std::fclose);
  if (file == nullptr) {
    const int error = errno;
    const std::string message =
        absl::StrCat("cannot open the ", what, " ", path, ": ", std::strerror(error));
    return error == EACCES ? absl::PermissionDeniedError(message) : absl::NotFoundError(message);
  }
  std::string text(kMaxConfigBytes + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (std::ferror(file.get()) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot read the ", what, " ", path, "; is it a file?"));
  }
  return text;
}

class Loader {
 public:
  Loader() : walker_(&errors_, &loaded_.origins) {
    loaded_.config = DefaultConfig();
    for (const Leaf& leaf : Leaves()) loaded_.origins[leaf.path] = "default";
  }

  void AddFile(absl::string_view text, absl::string_view name) {
    walker_.WalkMap(ParseFile(text, name, &errors_), "", &loaded_.config);
  }

  void AddEnv(const std::map<std::string, std::string>& env) {
    for (const auto& [name, value] : env) {
      if (const Leaf* leaf = FindLeaf(&Leaf::env, name)) {
        SetLeaf(*leaf, value, name);
        continue;
      }
      const VariableVerdict verdict = JudgeVariable(name, value);
      const std::string shown = absl::CHexEscape(name);  // A name may be any bytes.
      if (verdict.kind == VariableVerdict::Kind::kMisspelt) errors_.Add(shown, verdict.message);
      if (verdict.kind == VariableVerdict::Kind::kUnknown) {
        loaded_.warnings.push_back(absl::StrCat(shown, ": ", verdict.message));
      }
    }
  }

  void AddFlags(const LoadOptions& options) {
    for (const auto& [path, value] : options.flags) {
      const auto typed = options.flags_typed.find(path);
      const std::string where =
          typed == options.flags_typed.end() ? absl::StrCat("--", path) : typed->second;
      if (const Leaf* leaf = FindLeaf(&Leaf::path, path)) {
        SetLeaf(*leaf, value, where);
        continue;
      }
      std::vector<std::string> paths;
      for (const Leaf& leaf : Leaves()) paths.push_back(leaf.path);
      errors_.Add(absl::CHexEscape(where),  // A path may be any bytes, too.
                  absl::StrCat("unknown field ", Quoted(path), Suggestion(path, paths)));
    }
  }

  absl::StatusOr<LoadedConfig> Finish() {
    BALLAST_RETURN_IF_ERROR(errors_.ToStatus());
    for (const Violation& violation : FindViolations(loaded_.config)) {
      const auto origin = loaded_.origins.find(violation.path);
      const bool known = origin != loaded_.origins.end() && origin->second != "default";
      errors_.Add(known ? origin->second : "",
                  absl::StrCat(violation.path, ": ", violation.message));
    }
    BALLAST_RETURN_IF_ERROR(errors_.ToStatus());
    return std::move(loaded_);
  }

 private:
  static const Leaf* FindLeaf(std::string Leaf::*member, const std::string& text) {
    for (const Leaf& leaf : Leaves()) {
      if (leaf.*member == text) return &leaf;
    }
    return nullptr;
  }

  void SetLeaf(const Leaf& leaf, const std::string& value, const std::string& where) {
    Message* message = &loaded_.config;
    if (leaf.section != nullptr) {
      message = message->GetReflection()->MutableMessage(message, leaf.section);
    }
    if (leaf.field->is_repeated()) {
      walker_.WalkField(ParseYaml(value, where, &errors_), leaf.path, leaf.field, message);
    } else {
      walker_.SetText(value, false, leaf.path, where, leaf.field, message);
    }
  }

  LoadedConfig loaded_;
  ErrorList errors_;
  Walker walker_;
};

}  // namespace

ServerConfig DefaultConfig() {
  ServerConfig config;
  FillDefaults(&config);
  return config;
}

absl::StatusOr<LoadedConfig> Load(const LoadOptions& options) {
  Loader loader;
  if (options.text.has_value()) {
    loader.AddFile(*options.text, options.file.empty() ? "configuration" : options.file);
  } else if (!options.file.empty()) {
    BALLAST_ASSIGN_OR_RETURN(const std::string text, ReadText(options.file, "configuration"));
    loader.AddFile(text, options.file);
  }
  loader.AddEnv(options.env);
  loader.AddFlags(options);
  return loader.Finish();
}

absl::StatusOr<std::vector<Peer>> ParsePeersFile(absl::string_view text, absl::string_view name) {
  ErrorList errors;
  Origins origins;
  v1::PeersFile file;
  const YamlNode tree = ParseFile(text, name, &errors);
  if (errors.empty() && tree.kind == YamlNode::Kind::kNull) {
    errors.Add(name, "empty; expected {\"peers\": [{\"id\": 0, \"address\": \"host:port\"}]}");
  }
  Walker(&errors, &origins).WalkMap(tree, "", &file);
  if (errors.empty() && file.peers().empty()) errors.Add(name, "names no peers");
  BALLAST_RETURN_IF_ERROR(errors.ToStatus());
  return std::vector<Peer>(file.peers().begin(), file.peers().end());
}

absl::StatusOr<std::vector<Peer>> ReadPeersFile(const std::string& path) {
  BALLAST_ASSIGN_OR_RETURN(const std::string text, ReadText(path, "peers file"));
  return ParsePeersFile(text, path);
}

}  // namespace ballast::config
