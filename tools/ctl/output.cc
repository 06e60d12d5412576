#include "tools/ctl/output.h"

#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/text/inert.h"

namespace ballast::tools {
namespace {

// Reads JSON, and writes YAML while it goes. The input is our own, hence well-formed.
class YamlWriter {
 public:
  explicit YamlWriter(absl::string_view json) : in_(json) {}

  std::string Write() {
    Value(0, /*on_line=*/false);
    return std::move(out_);
  }

 private:
  void Blanks() {
    while (!in_.empty() && absl::ascii_isspace(static_cast<unsigned char>(in_[0]))) {
      in_.remove_prefix(1);
    }
  }
  // Takes `c` if it comes next.
  bool Take(char c) {
    Blanks();
    if (in_.empty() || in_[0] != c) return false;
    in_.remove_prefix(1);
    return true;
  }
  // A string with its quotes, a number or a word.
  absl::string_view Scalar() {
    Blanks();
    size_t end = 0;
    if (!in_.empty() && in_[0] == '"') {
      for (end = 1; end < in_.size() && in_[end] != '"'; ++end) end += in_[end] == '\\' ? 1 : 0;
      ++end;
    } else {
      while (end < in_.size() && in_[end] != ',' && in_[end] != ']' && in_[end] != '}' &&
             !absl::ascii_isspace(static_cast<unsigned char>(in_[end]))) {
        ++end;
      }
    }
    const absl::string_view scalar = in_.substr(0, end);
    in_.remove_prefix(scalar.size());
    return scalar;
  }
  void Indent(size_t depth) { out_.append(2 * depth, ' '); }

  // `on_line`: the line is not empty, and a first entry follows on it.
  void Value(size_t depth, bool on_line) {
    if (Take('{')) return Entries(depth, on_line, '}');
    if (Take('[')) return Entries(depth, on_line, ']');
    absl::StrAppend(&out_, Scalar(), "\n");
  }

  void Entries(size_t depth, bool on_line, char close) {
    if (Take(close)) {
      out_ += close == '}' ? "{}\n" : "[]\n";
      return;
    }
    do {
      if (!on_line) Indent(depth);
      on_line = false;
      close == '}' ? Member(depth) : Element(depth);
    } while (Take(','));
    Take(close);
  }

  void Member(size_t depth) {
    const absl::string_view key = Scalar();
    absl::StrAppend(&out_, key.substr(1, key.size() - 2), ":");
    Take(':');
    Blanks();
    const bool nested = in_[0] == '{' || in_[0] == '[';
    const bool empty = nested && (in_.substr(1, 1) == "}" || in_.substr(1, 1) == "]");
    out_ += nested && !empty ? "\n" : " ";
    Value(depth + 1, /*on_line=*/false);
  }

  void Element(size_t depth) {
    out_ += "- ";
    Value(depth + 1, /*on_line=*/true);
  }

  absl::string_view in_;
  std::string out_;
};

bool WantsColours() {
  const char* none = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  return isatty(STDOUT_FILENO) == 1 && (none == nullptr || *none == '\0') && term != nullptr &&
         absl::string_view(term) != "dumb";
}

std::string ColouredLine(absl::string_view line) {
  static const auto* const bad = new std::set<absl::string_view>{
      "unreachable", "failed", "lost", "waiting", "unhealthy", "FAIL", "halted", "skipped"};
  static const auto* const good =
      new std::set<absl::string_view>{"serving", "running", "healthy", "OK", "committed"};
  std::string out;
  for (size_t at = 0; at < line.size();) {
    const bool blank = line[at] == ' ';
    size_t end = at;
    while (end < line.size() && (line[end] == ' ') == blank) ++end;
    const absl::string_view word = line.substr(at, end - at);
    const char* colour = bad->count(word) > 0    ? "\x1b[31m"
                         : good->count(word) > 0 ? "\x1b[32m"
                                                 : "";
    absl::StrAppend(&out, colour, word, *colour == '\0' ? "" : "\x1b[0m");
    at = end;
  }
  return out;
}

}  // namespace

std::string YamlOfJson(absl::string_view json) { return YamlWriter(json).Write(); }

std::string Coloured(const std::string& table) {
  std::string out;
  bool heading = true;
  for (const absl::string_view line : absl::StrSplit(table, '\n')) {
    if (!out.empty()) out += "\n";
    const bool bold = heading && !line.empty() && absl::ascii_isupper(line[0]);
    out += bold ? absl::StrCat("\x1b[1m", line, "\x1b[0m") : ColouredLine(line);
    heading = line.empty();
  }
  return out;
}

int Print(const Options& options, const std::string& table, const std::string& json) {
  if (options.form == Form::kJson) {
    std::cout << json;
  } else if (options.form == Form::kYaml) {
    std::cout << YamlOfJson(json);
  } else {
    const std::string text = Inert(table);
    std::cout << (WantsColours() ? Coloured(text) : text);
  }
  return std::cout.flush() ? 0 : kFailure;
}

}  // namespace ballast::tools
