// The page /statusz for people: StatusReply as HTML.
// Comes from: ballastd. Goes to: browsers. Thread safety: pure functions.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "ballast/v1/admin.pb.h"

namespace ballast::server {

// `text`, of any content, escaped for the inside of an HTML element or a quoted attribute. Control
// characters and invalid UTF-8 become visible escapes.
std::string HtmlText(absl::string_view text);

// A complete page without scripts or other resources, which reloads itself every 5 s: whether all
// is well, and if not, the parties waited for; then server and peers, disks, jobs, extents owed by
// trainers, the last rounds, works under way, the last events. `warning`, if not empty, comes
// second.
std::string StatusHtml(const v1::StatusReply& reply, const std::string& warning = "");

}  // namespace ballast::server
