// JSON as a stream of events, so that text from outside makes nothing larger than its visitor
// allows: no tree is built, and a value out of place is refused where it begins.
// Comes from: header.cc, index.cc. Goes to: nlohmann-json's SAX parser, which no other file
// includes.
// Thread safety: pure functions; a visitor belongs to one call.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ballast {

// What VisitJson calls, in the order of the text. An error ends the visit. Strings are unescaped
// UTF-8 and valid during the call.
class JsonVisitor {
 public:
  virtual ~JsonVisitor() = default;

  virtual absl::Status BeginObject() = 0;
  virtual absl::Status EndObject() = 0;
  virtual absl::Status BeginArray() = 0;
  virtual absl::Status EndArray() = 0;
  virtual absl::Status Key(absl::string_view key) = 0;
  virtual absl::Status String(absl::string_view value) = 0;
  // A number without sign, point and exponent, below 2^64.
  virtual absl::Status Number(uint64_t value) = 0;
  // Anything else: null, true, false, other numbers. `shown` is how an error names it.
  virtual absl::Status Other(absl::string_view shown) = 0;
};

// Visits the one value that `text` is. Allocates at most a few times the longest string of the text
// and a bit per level of nesting; does not recurse. INVALID_ARGUMENT, with the byte: no JSON,
// anything but white space after the value, a byte 0, or invalid UTF-8. Else the visitor's error.
absl::Status VisitJson(absl::string_view text, JsonVisitor* visitor);

// Appends `text`, which is UTF-8, to `json` as a string in quotes. Always the same bytes.
void AppendJsonString(absl::string_view text, std::string* json);

}  // namespace ballast
