// YAML subset with positions, on yaml-cpp's event interface: its node interface resolves aliases
// and tags before we could refuse them. See yaml_tree.h.
#include "server/config/yaml_tree.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/utf8.h"
#include "common/text/names.h"
#include "yaml-cpp/eventhandler.h"

namespace ballast::config {
namespace {

std::string Place(absl::string_view name, const YAML::Mark& mark) {
  return absl::StrCat(name, ":", std::max(0, mark.line) + 1, ":", std::max(0, mark.column) + 1);
}

// Builds the tree from events. It never throws: after an error it continues, so that later errors
// are found too.
class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(absl::string_view name, ErrorList* errors) : name_(name), errors_(errors) {}

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ == 2) errors_->Add(Place(name_, mark), "only one document is allowed");
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Leaf(YamlNode::Kind::kNull, mark, "", anchor, "");
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    errors_->Add(Place(name_, mark), "aliases (*name) are not allowed; write the value out");
    Leaf(YamlNode::Kind::kNull, mark, "", 0, "");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    Leaf(YamlNode::Kind::kScalar, mark, tag, anchor, value);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Open(YamlNode::Kind::kList, mark, tag, anchor);
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Open(YamlNode::Kind::kMap, mark, tag, anchor);
  }
  void OnMapEnd() override { Close(); }

  YamlNode TakeRoot() { return std::move(root_); }

 private:
  // A list or map whose end has not come yet.
  struct Frame {
    YamlNode node;
    bool has_key = false;
    std::string key;
    std::string key_where;
    std::map<std::string, std::string> seen;  // key -> where it stood first
  };

  void CheckPlain(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    if (anchor != 0) errors_->Add(Place(name_, mark), "anchors (&name) are not allowed");
    if (!tag.empty() && tag != "?" && tag != "!") {
      errors_->Add(Place(name_, mark), absl::StrCat("tags are not allowed: ", Quoted(tag)));
    }
  }

  void Leaf(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag,
            YAML::anchor_t anchor, const std::string& value) {
    CheckPlain(mark, tag, anchor);
    if (too_deep_ > 0) return;
    YamlNode node;
    node.kind = kind;
    node.where = Place(name_, mark);
    node.text = value;
    node.quoted = tag == "!";
    Attach(std::move(node));
  }

  void Open(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag,
            YAML::anchor_t anchor) {
    CheckPlain(mark, tag, anchor);
    if (too_deep_ > 0 || stack_.size() >= static_cast<size_t>(kMaxConfigDepth)) {
      if (too_deep_++ == 0) {
        errors_->Add(Place(name_, mark),
                     absl::StrCat("nested deeper than ", kMaxConfigDepth, " levels"));
      }
      return;
    }
    Frame frame;
    frame.node.kind = kind;
    frame.node.where = Place(name_, mark);
    stack_.push_back(std::move(frame));
  }

  void Close() {
    if (too_deep_ > 0) {
      if (--too_deep_ == 0) Attach(YamlNode());
      return;
    }
    YamlNode node = std::move(stack_.back().node);
    stack_.pop_back();
    Attach(std::move(node));
  }

  void Attach(YamlNode node) {
    if (stack_.empty()) {
      root_ = std::move(node);
      return;
    }
    Frame& parent = stack_.back();
    if (parent.node.kind == YamlNode::Kind::kMap) {
      if (!parent.has_key) {
        SetKey(&parent, node);
        return;
      }
      parent.has_key = false;
      node.key = std::move(parent.key);
      node.key_where = std::move(parent.key_where);
    }
    parent.node.children.push_back(std::move(node));
  }

  void SetKey(Frame* parent, const YamlNode& node) {
    parent->has_key = true;
    parent->key = node.text;
    parent->key_where = node.where;
    if (node.kind != YamlNode::Kind::kScalar) {
      errors_->Add(node.where,
                   absl::StrCat("a field name is expected here, got ", KindName(node.kind)));
      return;
    }
    const auto [first, is_new] = parent->seen.emplace(node.text, node.where);
    if (!is_new) {
      errors_->Add(node.where, absl::StrCat("duplicate field ", Quoted(node.text), " (first at ",
                                            first->second, ")"));
    }
  }

  const std::string name_;
  ErrorList* const errors_;
  int documents_ = 0;
  int too_deep_ = 0;  // open containers beyond the depth limit
  std::vector<Frame> stack_;
  YamlNode root_;
};

}  // namespace

absl::string_view KindName(YamlNode::Kind kind) {
  switch (kind) {
    case YamlNode::Kind::kNull:
      return "nothing";
    case YamlNode::Kind::kScalar:
      return "a single value";
    case YamlNode::Kind::kList:
      return "a list";
    case YamlNode::Kind::kMap:
      return "a map of fields";
  }
  return "nothing";
}

bool IsPlainText(absl::string_view text) {
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    if (length == 0) return false;
    const auto c = static_cast<unsigned char>(text[0]);
    if ((c < 0x20 && c != '\n' && c != '\r' && c != '\t') || c == 0x7F) return false;
    text.remove_prefix(length);
  }
  return true;
}

YamlNode ParseYaml(absl::string_view text, absl::string_view name, ErrorList* errors) {
  if (text.size() > kMaxConfigBytes) {
    errors->Add(name, absl::StrCat("larger than the limit of ", kMaxConfigBytes, " bytes"));
    return YamlNode();
  }
  if (!IsPlainText(text)) {
    errors->Add(name, "not UTF-8 text, or it contains control characters");
    return YamlNode();
  }
  std::istringstream stream{std::string(text)};
  TreeBuilder builder(name, errors);
  try {
    YAML::Parser parser(stream);
    // At most twice: before a stray ',' the parser finds empty documents without end.
    if (parser.HandleNextDocument(builder)) parser.HandleNextDocument(builder);
  } catch (const YAML::Exception& error) {
    const bool tabs = absl::StrContains(text, "\n\t");
    errors->Add(Place(name, error.mark),
                absl::StrCat("not valid YAML: ", error.msg,
                             tabs ? " (indentation must be blanks, not tabs)" : ""));
  } catch (const std::exception& error) {
    errors->Add(name, absl::StrCat("not valid YAML: ", error.what()));
  }
  return builder.TakeRoot();
}

}  // namespace ballast::config
