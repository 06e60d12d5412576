// Whether a text is JSON as RFC 8259 has it. The YAML parser that then reads it accepts more:
// commas before a bracket, comments, words without quotes. A .json file must be readable by
// everybody else's parser, too.
// Comes from: load (text of *.json files). Goes to: error lists.
// Thread safety: pure functions. Cost: one pass.
#pragma once

#include "absl/strings/string_view.h"
#include "server/config/error_list.h"

namespace ballast::config {

// True for the name of a JSON file.
bool IsJsonName(absl::string_view name);

// Whether `text`, called `name` in messages, is without fault; the first one goes to `errors`, with
// line and column (in bytes). Values nested deeper than kMaxConfigDepth are a fault. Text of blanks
// alone is none: it sets nothing.
bool CheckJson(absl::string_view text, absl::string_view name, ErrorList* errors);

}  // namespace ballast::config
