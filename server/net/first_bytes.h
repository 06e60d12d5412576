// Judges the first bytes of a connection: a client's preface of HTTP/2, or something that no port
// of ours answers.
// Comes from: AcceptLoop. Goes to: nothing. Thread safety: pure functions.
// Source: RFC 9113, section 3.4; RFC 8446, section 5.1.
#pragma once

#include <cstddef>
#include <optional>

#include "absl/strings/string_view.h"
#include "server/net/connection_gate.h"

namespace ballast::server {

// As many bytes decide.
inline constexpr size_t kFirstBytesMax = 24;
// "PRI * HTTP/2.0...", with which every client of HTTP/2 without TLS begins.
inline constexpr absl::string_view kHttp2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

enum class Opening { kMore, kGood, kBad };

struct FirstBytes {
  Opening opening = Opening::kMore;                         // kMore: too few bytes yet
  ConnectionRefusal refusal = ConnectionRefusal::kGarbage;  // of kBad
};

// Judges `bytes`, the first of a connection, at a port with TLS or without.
FirstBytes JudgeFirstBytes(absl::string_view bytes, bool tls);

}  // namespace ballast::server
