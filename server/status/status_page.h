// The page /statusz for people: StatusReply as HTML.
// Comes from: ballastd. Goes to: browsers. Thread safety: pure functions.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "ballast/v1/admin.pb.h"

namespace ballast::server {

// `text` for the inside of an HTML element or of a quoted attribute: as text, whatever it holds.
// Control characters and bytes that are no UTF-8 become visible escapes.
std::string HtmlText(absl::string_view text);

// One whole page without scripts, which loads nothing and asks for itself again every 5 s: whether
// all is well, and if not, what waits for whom; then server and peers, disks, jobs, what trainers
// owe, the last rounds, works under way, the last events. `warning`, if it is not empty, stands
// second.
std::string StatusHtml(const v1::StatusReply& reply, const std::string& warning = "");

}  // namespace ballast::server
