// The head of a request of HTTP/1: as much of it as read-only pages need.
// Comes from: a connection of the admin port. Goes to: AdminServer. Thread safety: pure functions.
// Source: RFC 9112, sections 2 to 5.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace ballast {

// No head of a request is longer.
inline constexpr size_t kRequestHeadBytesMax = 16384;

// The empty line that ends the head.
inline constexpr absl::string_view kRequestHeadEnd = "\r\n\r\n";

struct HttpRequest {
  std::string method;
  std::string path;           // as it was sent, without the query
  std::string format;         // of the query: the first format=...; empty without
  std::string accept;         // of headers, the first of its name; empty without
  std::string authorization;  // likewise
};

// Reads a head with its end. Nothing when it is not one: a line too few, a request line of other
// than three words, another version than HTTP/1.
std::optional<HttpRequest> ParseRequestHead(absl::string_view head);

}  // namespace ballast
