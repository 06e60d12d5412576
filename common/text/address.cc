// host:port texts. See address.h.
#include "common/text/address.h"

#include <arpa/inet.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/text/names.h"

namespace ballast {
namespace {

absl::Status Bad(absl::string_view text, absl::string_view reason) {
  return absl::InvalidArgumentError(absl::StrCat(
      "expected host:port such as 127.0.0.1:7000 or [::1]:7000, got ", Quoted(text), ": ", reason));
}

bool IsHostName(absl::string_view host) {
  return !host.empty() && std::all_of(host.begin(), host.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_';
  });
}

// True when `host` is a text of the address family; `bytes` receives it in network order.
bool ParseIp(int family, absl::string_view host, void* bytes) {
  return inet_pton(family, std::string(host).c_str(), bytes) == 1;
}

}  // namespace

absl::StatusOr<HostPort> ParseHostPort(absl::string_view text) {
  if (absl::StrContains(text, "://")) {
    return Bad(text, "an address has no scheme; leave out what stands before the host");
  }
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return Bad(text, "there is no port");
  absl::string_view host = text.substr(0, colon);
  const absl::string_view port_text = text.substr(colon + 1);
  if (!host.empty() && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
    in6_addr ip;
    if (!ParseIp(AF_INET6, host, &ip)) return Bad(text, "no IPv6 address in the brackets");
  } else if (host.find(':') != absl::string_view::npos) {
    return Bad(text, "an IPv6 address needs brackets");
  } else if (!IsHostName(host)) {
    return Bad(text, "that is no host name");
  }
  uint32_t port = 0;
  const bool digits = !port_text.empty() && port_text.size() <= 5 &&
                      std::all_of(port_text.begin(), port_text.end(), absl::ascii_isdigit);
  if (!digits || !absl::SimpleAtoi(port_text, &port) || port > 65535) {
    return Bad(text, "the port is a number from 0 to 65535");
  }
  return HostPort{std::string(host), static_cast<uint16_t>(port)};
}

absl::StatusOr<HostPort> ParseEndpoint(absl::string_view text) {
  absl::StatusOr<HostPort> address = ParseHostPort(text);
  if (address.ok() && address->port == 0) {
    return Bad(text, "port 0 cannot be reached; give the port that ballastd listens on");
  }
  return address;
}

bool IsLoopback(absl::string_view host) {
  if (absl::AsciiStrToLower(host) == "localhost") return true;
  in_addr ip4;
  if (ParseIp(AF_INET, host, &ip4)) return (ntohl(ip4.s_addr) >> 24) == 127;
  in6_addr ip6;
  return ParseIp(AF_INET6, host, &ip6) && IN6_IS_ADDR_LOOPBACK(&ip6);
}

bool IsWildcard(absl::string_view host) {
  in_addr ip4;
  if (ParseIp(AF_INET, host, &ip4)) return ip4.s_addr == htonl(INADDR_ANY);
  in6_addr ip6;
  return ParseIp(AF_INET6, host, &ip6) && IN6_IS_ADDR_UNSPECIFIED(&ip6);
}

}  // namespace ballast
