#include "server/admin/http_request.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace ballast {
namespace {

std::string FormatOf(absl::string_view query) {
  for (absl::string_view part : absl::StrSplit(query, '&')) {
    if (absl::ConsumePrefix(&part, "format=")) return std::string(part);
  }
  return "";
}

void TakeHeader(absl::string_view line, HttpRequest* request) {
  const std::pair<absl::string_view, absl::string_view> header =
      absl::StrSplit(line, absl::MaxSplits(':', 1));
  std::string* to = nullptr;
  if (absl::EqualsIgnoreCase(header.first, "accept")) to = &request->accept;
  if (absl::EqualsIgnoreCase(header.first, "authorization")) to = &request->authorization;
  if (to == nullptr || !to->empty()) return;
  *to = std::string(absl::StripAsciiWhitespace(header.second));
}

}  // namespace

std::optional<HttpRequest> ParseRequestHead(absl::string_view head) {
  if (!absl::StrContains(head, kRequestHeadEnd)) return std::nullopt;
  const std::vector<absl::string_view> lines =
      absl::StrSplit(head.substr(0, head.find(kRequestHeadEnd)), "\r\n");
  const std::vector<absl::string_view> words = absl::StrSplit(lines[0], ' ');
  if (words.size() != 3 || !absl::StartsWith(words[2], "HTTP/1.")) return std::nullopt;
  if (words[0].empty() || !absl::StartsWith(words[1], "/")) return std::nullopt;
  HttpRequest request;
  request.method = std::string(words[0]);
  const std::pair<absl::string_view, absl::string_view> target =
      absl::StrSplit(words[1], absl::MaxSplits('?', 1));
  request.path = std::string(target.first);
  request.format = FormatOf(target.second);
  for (size_t i = 1; i < lines.size(); ++i) TakeHeader(lines[i], &request);
  return request;
}

}  // namespace ballast
