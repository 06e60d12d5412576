#include "server/rpc/status_page.h"

#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/inert.h"
#include "server/rpc/status_rows.h"

namespace ballast::server {
namespace {

constexpr char kHead[] =
    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
    "<meta http-equiv=\"refresh\" content=\"5\">"
    "<meta name=\"viewport\" content=\"width=device-width\">\n<style>\n"
    "body{font:14px/1.4 system-ui,sans-serif;margin:1.5em;color:#222;background:#fff}\n"
    "table{border-collapse:collapse;margin:0 0 1.5em}\n"
    "th,td{text-align:left;padding:.2em .8em .2em 0;border-bottom:1px solid #ddd;"
    "vertical-align:top;overflow-wrap:anywhere}\n"
    "th{color:#555;font-weight:600}\n.bad{color:#b00020;font-weight:600}\n.good{color:#186a3b}\n"
    "@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}"
    "th{color:#aaa}th,td{border-color:#444}.bad{color:#ff6b6b}.good{color:#6fcf97}}\n"
    "</style>\n<title>";

// A state that stands out.
const char* ClassOf(const std::string& cell) {
  static const auto* const bad = new std::set<std::string>{
      "failed",   "lost",       "halted", "skipped",           "damaged",
      "unopened", "ERROR",      "WARN",   "waiting for peers", "replaying",
      "ending",   "not serving"};
  static const auto* const good = new std::set<std::string>{"serving", "running", "committed"};
  if (bad->count(cell) > 0 || cell.find(" unreachable") != std::string::npos) return "bad";
  return good->count(cell) > 0 ? "good" : "";
}

// "STATE BYTES" as "State bytes".
std::string Heading(std::string text) {
  absl::AsciiStrToLower(&text);
  text[0] = absl::ascii_toupper(static_cast<unsigned char>(text[0]));
  return text;
}

std::string Table(const std::string& title, const std::vector<Row>& rows) {
  std::string out = absl::StrCat("<h2>", title, "</h2>\n");
  if (rows.size() == 1) return out + "<p>none</p>\n";
  out += "<table><thead><tr>";
  for (const std::string& cell : rows[0]) {
    absl::StrAppend(&out, "<th>", HtmlText(Heading(cell)), "</th>");
  }
  out += "</tr></thead><tbody>\n";
  for (size_t i = 1; i < rows.size(); ++i) {
    out += "<tr>";
    for (const std::string& cell : rows[i]) {
      const std::string look = ClassOf(cell);
      absl::StrAppend(&out, "<td", look.empty() ? "" : absl::StrCat(" class=\"", look, "\""), ">",
                      HtmlText(cell), "</td>");
    }
    out += "</tr>\n";
  }
  return out + "</tbody></table>\n";
}

std::string Errors(const v1::StatusReply& reply) {
  std::string out;
  for (const v1::JobStatus& job : reply.jobs()) {
    if (job.error().empty()) continue;
    absl::StrAppend(&out, "<p class=\"bad\">", HtmlText(job.name()), ": ", HtmlText(job.error()),
                    "</p>\n");
  }
  return out;
}

}  // namespace

std::string HtmlText(absl::string_view text) {
  return absl::StrReplaceAll(
      Inert(text),
      {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

std::string StatusHtml(const v1::StatusReply& reply, const std::string& warning) {
  const Replies one = {reply};
  const std::string title = absl::StrCat("Ballast server ", reply.id());
  const std::string above =
      warning.empty() ? "" : absl::StrCat("<p class=\"bad\">", HtmlText(warning), "</p>\n");
  return absl::StrCat(kHead, title, "</title></head><body>\n<h1>", title, "</h1>\n", above,
                      Table("Server", ServerRows(one)), Table("Jobs", JobRows(one)), Errors(reply),
                      Table("Trainers and what they owe", SlotRows(one)),
                      Table("Last rounds", RoundRows(one)), Table("Works under way", WorkRows(one)),
                      Table("Last events", EventRows(one)),
                      "<p>The same as <a href=\"?format=text\">text</a> and "
                      "<a href=\"?format=json\">JSON</a>; <a href=\"/metrics\">metrics</a>, "
                      "<a href=\"/configz\">configuration</a></p>\n</body></html>\n");
}

}  // namespace ballast::server
