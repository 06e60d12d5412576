#include "server/net/first_bytes.h"

#include <algorithm>
#include <array>
#include <optional>

#include "absl/strings/match.h"

namespace ballast::server {
namespace {

// A record of TLS that holds a handshake: its type, and the first byte of its version.
constexpr absl::string_view kTlsRecord("\x16\x03", 2);
constexpr std::array<absl::string_view, 9> kHttp1Methods = {
    "GET ", "HEAD ", "POST ", "PUT ", "DELETE ", "OPTIONS ", "CONNECT ", "TRACE ", "PATCH "};

// Whether `bytes` begin with `whole`, or are the beginning of it.
bool Begins(absl::string_view bytes, absl::string_view whole) {
  const size_t length = std::min(bytes.size(), whole.size());
  return bytes.substr(0, length) == whole.substr(0, length);
}

// `refusal`: why a connection that begins with `whole` is refused; none: it is served.
FirstBytes Expect(absl::string_view bytes, absl::string_view whole,
                  std::optional<ConnectionRefusal> refusal) {
  if (bytes.size() < whole.size()) return {Opening::kMore, ConnectionRefusal::kGarbage};
  if (refusal.has_value()) return {Opening::kBad, *refusal};
  return {Opening::kGood, ConnectionRefusal::kGarbage};
}

}  // namespace

FirstBytes JudgeFirstBytes(absl::string_view bytes, bool tls) {
  constexpr std::optional<ConnectionRefusal> kServed;
  if (bytes.empty()) return {Opening::kMore, ConnectionRefusal::kGarbage};
  if (Begins(bytes, kTlsRecord)) {
    return Expect(bytes, kTlsRecord, tls ? kServed : ConnectionRefusal::kTls);
  }
  if (Begins(bytes, kHttp2Preface)) {
    return Expect(bytes, kHttp2Preface, tls ? ConnectionRefusal::kPlaintext : kServed);
  }
  for (const absl::string_view method : kHttp1Methods) {
    if (Begins(bytes, method)) return Expect(bytes, method, ConnectionRefusal::kHttp1);
  }
  return {Opening::kBad, ConnectionRefusal::kGarbage};
}

}  // namespace ballast::server
