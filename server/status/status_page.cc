#include "server/status/status_page.h"

#include <map>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/text/inert.h"
#include "server/status/status_problems.h"
#include "server/status/status_rows.h"

namespace ballast::server {
namespace {

constexpr char kHead[] =
    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
    "<meta http-equiv=\"refresh\" content=\"5\">"
    "<meta name=\"viewport\" content=\"width=device-width\">\n<style>\n"
    "body{font:14px/1.4 system-ui,sans-serif;margin:1.5em;color:#222;background:#fff}\n"
    "h1,h2{margin:1em 0 .3em}h1{font-size:1.5em}h2{font-size:1.15em}\n"
    ".verdict{font-size:1.25em;margin:0;padding:.5em .8em;border-left:.4em solid;"
    "overflow-wrap:anywhere}.muted{color:#555}\n"
    // Wide tables scroll by themselves, so that no heading breaks inside a word.
    ".wide{overflow-x:auto}table{border-collapse:collapse}\n"
    "th,td{text-align:left;padding:.2em 1em .2em 0;border-bottom:1px solid #ddd;"
    "vertical-align:top;white-space:nowrap}\n"
    ".name,.text{white-space:normal;min-width:7em;overflow-wrap:anywhere}.text{min-width:16em}\n"
    "th{color:#555;font-weight:600}\n.bad{color:#b00020;font-weight:600}\n.good{color:#186a3b}\n"
    // On a phone, each row of a table of few rows is shown as a list of its cells.
    "@media(max-width:640px){body{margin:.8em}"
    ".few thead{display:none}.few tr,.few td{display:block}.few tr{padding:.3em 0}"
    ".few td{border:0;padding:.1em 0;white-space:normal;overflow-wrap:anywhere}"
    ".few td::before{content:attr(data-is) \": \";color:#777;font-weight:400}}\n"
    "@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}a{color:#8ab4f8}"
    "th,.muted{color:#aaa}th,td{border-color:#444}.bad{color:#ff6b6b}.good{color:#6fcf97}}\n"
    "</style>\n<title>";

// For columns with user-chosen names or texts, which may be long and break anywhere.
const char* WidthOf(const std::string& column) {
  if (column == "EVENT") return "text";
  return column == "TENANT" || column == "JOB" || column == "NAME" ? "name" : "";
}

// For a state that should stand out.
const char* ClassOf(const std::string& cell) {
  static const auto* const bad =
      new std::set<std::string>{"failed",    "lost",    "halted",
                                "skipped",   "damaged", "unopened",
                                "ERROR",     "WARN",    "waiting for peers",
                                "replaying", "ending",  "not serving",
                                "waiting",   "silent"};
  static const auto* const good =
      new std::set<std::string>{"serving", "running", "committed", "answers"};
  if (bad->count(cell) > 0) return "bad";
  return good->count(cell) > 0 ? "good" : "";
}

// "STATE BYTES" as "State bytes".
std::string Heading(std::string text) {
  absl::AsciiStrToLower(&text);
  text[0] = absl::ascii_toupper(static_cast<unsigned char>(text[0]));
  return absl::StrReplaceAll(text, {{"(utc)", "(UTC)"}, {"Isa", "ISA"}});
}

// Cells given as HTML; all others are text.
using CellHtml = std::map<std::string, std::string>;

std::string Cell(const std::string& column, const std::string& cell, const CellHtml& html) {
  const auto own = html.find(column);
  // A job may have the same name as a state.
  const std::string width = WidthOf(column);
  const std::string look = width.empty() ? ClassOf(cell) : width;
  return absl::StrCat("<td data-is=\"", HtmlText(Heading(column)), "\"",
                      look.empty() ? "" : absl::StrCat(" class=\"", look, "\""), ">",
                      own == html.end() ? HtmlText(cell) : own->second, "</td>");
}

// `rows` without the server column: the page is about one server. `html`: cells with more than
// plain text, for a table with one row.
std::string Table(const std::string& title, const std::vector<Row>& rows, bool few = false,
                  const CellHtml& html = {}) {
  std::string out = absl::StrCat("<h2>", title, "</h2>\n");
  if (rows.size() == 1) return out + "<p>none</p>\n";
  absl::StrAppend(&out, "<div class=\"wide\"><table", few ? " class=\"few\"" : "", "><thead><tr>");
  for (const std::string& column : rows[0]) {
    if (column == "SERVER") continue;
    absl::StrAppend(&out, "<th>", HtmlText(Heading(column)), "</th>");
  }
  out += "</tr></thead><tbody>\n";
  for (size_t i = 1; i < rows.size(); ++i) {
    out += "<tr>";
    for (size_t column = 0; column < rows[i].size(); ++column) {
      if (rows[0][column] != "SERVER") out += Cell(rows[0][column], rows[i][column], html);
    }
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

// The peers, each a link to its own page if its admin port is known.
std::string PeerLinks(const v1::StatusReply& reply) {
  std::string out;
  for (const v1::PeerStatus& peer : reply.peers()) {
    const std::string name = absl::StrCat("server ", peer.id());
    absl::StrAppend(&out, out.empty() ? "" : ", ",
                    peer.admin().empty() ? name
                                         : absl::StrCat("<a href=\"http://", HtmlText(peer.admin()),
                                                        "/statusz\">", name, "</a>"),
                    peer.reachable() ? "" : " <span class=\"bad\">unreachable</span>");
  }
  return out.empty() ? "-" : out;
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
  const Verdict verdict = VerdictOf(reply);
  const std::string warned =
      warning.empty() ? "" : absl::StrCat("<p class=\"bad\">", HtmlText(warning), "</p>\n");
  return absl::StrCat(
      kHead, title, verdict.well ? "" : ": not well", "</title></head><body>\n<p class=\"verdict ",
      verdict.well ? "good" : "bad", "\">", HtmlText(verdict.text), "</p>\n", warned, "<h1>", title,
      "</h1>\n<p class=\"muted\">As of ",
      absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::Now(), absl::UTCTimeZone()),
      " UTC; this page loads itself again every 5 s.</p>\n",
      Table("Server", ServerRows(one), /*few=*/true, {{"PEERS", PeerLinks(reply)}}),
      Table("Disks", DiskRows(one), /*few=*/true), Table("Jobs", JobRows(one), /*few=*/true),
      Errors(reply), Table("Trainers and what they owe", SlotRows(one)),
      Table("Last rounds", RoundRows(one)), Table("Works under way", WorkRows(one)),
      Table("Last events", EventRows(one)),
      "<p>The same as <a href=\"?format=text\">text</a> and "
      "<a href=\"?format=json\">JSON</a>; <a href=\"/metrics\">metrics</a>, "
      "<a href=\"/configz\">configuration</a></p>\n</body></html>\n");
}

}  // namespace ballast::server
