#include "server/config/json_syntax.h"

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/faults/planted.h"
#include "server/config/yaml_tree.h"

namespace ballast::config {
namespace {

// Reads forward until the first fault, which it remembers. Every reader returns false after one.
class JsonScanner {
 public:
  explicit JsonScanner(absl::string_view text) : text_(text) {}

  bool Document() {
    if (!Value(0)) return false;
    SkipBlanks();
    return at_ == text_.size() || Fail(at_, "text behind the end of the value");
  }
  const std::string& fault() const { return fault_; }
  // "line:col" of the fault.
  std::string place() const {
    const absl::string_view before = text_.substr(0, fault_at_);
    const size_t lines = static_cast<size_t>(std::count(before.begin(), before.end(), '\n'));
    const size_t begin = lines == 0 ? 0 : before.rfind('\n') + 1;
    return absl::StrCat(lines + 1, ":", fault_at_ - begin + 1);
  }

 private:
  // The next byte; 0 at the end, which no JSON contains.
  char Next() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  bool Fail(size_t at, std::string what) {
    fault_at_ = at;
    fault_ = std::move(what);
    return false;
  }

  bool Expected(absl::string_view what) {
    return Fail(at_, absl::StrCat("expected ", what,
                                  at_ == text_.size() ? ", but the text ends here" : ""));
  }

  void SkipBlanks() {
    while (absl::StrContains(" \t\r\n", Next()) && at_ < text_.size()) ++at_;
  }

  bool Value(int depth) {
    SkipBlanks();
    if (Next() == '{' || Next() == '[') {
      if (depth < kMaxConfigDepth) return Container(depth);
      return Fail(at_, absl::StrCat("nested deeper than ", kMaxConfigDepth, " levels"));
    }
    if (Next() == '"') return String();
    if (Next() == '-' || absl::ascii_isdigit(Next())) return Number();
    for (const absl::string_view word : {"true", "false", "null"}) {
      if (absl::StartsWith(text_.substr(at_), word)) {
        at_ += word.size();
        return true;
      }
    }
    return Expected("a value");
  }

  // An object or an array.
  bool Container(int depth) {
    const bool object = text_[at_++] == '{';
    const char end = object ? '}' : ']';
    SkipBlanks();
    if (Next() == end) return Skip();
    while (true) {
      if (object && !Key()) return false;
      if (!Value(depth + 1)) return false;
      SkipBlanks();
      if (Next() == end) return Skip();
      if (Next() != ',') return Expected(object ? "a comma or }" : "a comma or ]");
      const size_t comma = at_++;
      SkipBlanks();
      if (Next() == end) return Fail(comma, "a comma with nothing behind it; remove it");
    }
  }

  bool Key() {
    SkipBlanks();
    if (Next() != '"') return Expected("a field name in double quotes");
    if (!String()) return false;
    SkipBlanks();
    return Next() == ':' ? Skip() : Expected("a colon");
  }

  bool Skip() {
    ++at_;
    return true;
  }

  bool String() {
    const size_t begin = at_++;
    while (at_ < text_.size() && text_[at_] != '"') {
      if (absl::ascii_iscntrl(text_[at_])) return Fail(at_, "a control character in a text");
      if (text_[at_++] == '\\' && !Escape()) return false;
    }
    return at_ < text_.size() ? Skip() : Fail(begin, "a text without its closing quote");
  }

  // The rest of an escape, after the backslash.
  bool Escape() {
    if (Next() != 'u') {
      return Next() != '\0' && absl::StrContains("\"\\/bfnrt", Next())
                 ? Skip()
                 : Fail(at_ - 1, "an unknown escape; a backslash itself is written \\\\");
    }
    ++at_;
    for (int i = 0; i < 4; ++i, ++at_) {
      if (!absl::ascii_isxdigit(Next())) return Expected("four hexadecimal digits");
    }
    return true;
  }

  bool Number() {
    if (Next() == '-') ++at_;
    const size_t begin = at_;
    if (!Digits()) return false;
    if (text_[begin] == '0' && at_ > begin + 1 && !BALLAST_PLANTED)
      return Fail(begin, "a number that begins with 0");
    if (Next() == '.' && !(Skip() && Digits())) return false;
    if (Next() != 'e' && Next() != 'E') return true;
    ++at_;
    if (Next() == '+' || Next() == '-') ++at_;
    return Digits();
  }

  // One or more.
  bool Digits() {
    if (!absl::ascii_isdigit(Next())) return Expected("a digit");
    while (absl::ascii_isdigit(Next())) ++at_;
    return true;
  }

  const absl::string_view text_;
  size_t at_ = 0;
  size_t fault_at_ = 0;
  std::string fault_;
};

}  // namespace

bool IsJsonName(absl::string_view name) { return absl::EndsWithIgnoreCase(name, ".json"); }

bool CheckJson(absl::string_view text, absl::string_view name, ErrorList* errors) {
  if (absl::StripAsciiWhitespace(text).empty()) return true;
  JsonScanner scanner(text);
  if (scanner.Document()) return true;
  errors->Add(absl::StrCat(name, ":", scanner.place()),
              absl::StrCat("not valid JSON: ", scanner.fault()));
  return false;
}

}  // namespace ballast::config
