#include "server/stream/directory_names.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "common/base/reason.h"

namespace ballast::server {
namespace {

bool IsOfName(char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// Whether the path that stands at `begin` of `text` is one of its own, not a part of another. A
// relative one, which may be a word like "data", must have a file's name after it.
bool StandsAlone(absl::string_view text, size_t begin, size_t length) {
  const auto continues = [](char c) { return IsOfName(c) || c == '-'; };
  const auto precedes = [](char c) { return IsOfName(c) || c == '-' || c == '.' || c == '/'; };
  const size_t end = begin + length;
  const bool whole = text[begin] == '/' || (end < text.size() && text[end] == '/');
  return whole && (begin == 0 || !precedes(text[begin - 1])) &&
         (end == text.size() || !continues(text[end]));
}

// The forms in which errors have the path: as it is configured, and without links and dots.
std::vector<std::string> FormsOf(const std::string& path) {
  std::error_code error;
  std::vector<std::filesystem::path> forms = {path};
  forms.push_back(std::filesystem::absolute(path, error).lexically_normal());
  forms.push_back(std::filesystem::weakly_canonical(path, error));
  std::vector<std::string> texts;
  for (const std::filesystem::path& form : forms) {
    std::string text = form.string();
    while (text.size() > 1 && text.back() == '/') text.pop_back();
    if (text.size() > 1) texts.push_back(std::move(text));
  }
  return texts;
}

}  // namespace

DirectoryNames::DirectoryNames(const std::vector<Entry>& entries) {
  for (const Entry& entry : entries) {
    if (entry.path.empty()) continue;
    for (std::string& form : FormsOf(entry.path)) {
      entries_.push_back({std::move(form), entry.setting});
    }
  }
  std::stable_sort(entries_.begin(), entries_.end(),
                   [](const Entry& a, const Entry& b) { return a.path.size() > b.path.size(); });
}

std::string DirectoryNames::Outward(absl::string_view text) const {
  std::string out(text.data(), text.size());
  for (const Entry& entry : entries_) {
    size_t at = 0;
    while ((at = out.find(entry.path, at)) != std::string::npos) {
      const bool alone = StandsAlone(out, at, entry.path.size());
      if (alone) out.replace(at, entry.path.size(), entry.setting);
      at += alone ? entry.setting.size() : 1;
    }
  }
  return out;
}

absl::Status DirectoryNames::Outward(const absl::Status& status) const {
  if (status.ok()) return status;
  const std::string text = Outward(status.message());
  absl::Status out(status.code(), text);
  status.ForEachPayload(
      [&](absl::string_view type, const absl::Cord& payload) { out.SetPayload(type, payload); });
  // The detail has the text once more, and it is the one that travels.
  if (status.GetPayload(kErrorDetailTypeUrl).has_value()) {
    out.SetPayload(kErrorDetailTypeUrl,
                   *ReasonedError(status.code(), ReasonOf(status), text, FieldsOf(status))
                        .GetPayload(kErrorDetailTypeUrl));
  }
  return out;
}

}  // namespace ballast::server
