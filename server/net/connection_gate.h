// ConnectionGate: how many connections there may be, in total and from one address, and how fast
// one address may open them. It counts; it knows no sockets.
// Comes from: AcceptLoop. Goes to: nothing. Thread safety: thread-compatible; times come in.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace ballast::server {

// Why a connection was closed: before gRPC saw it, or, the last three, because of its bytes
// (FrameGuard).
enum class ConnectionRefusal {
  kFull,         // as many are open as there may be
  kAddress,      // as many are open from its address as there may be
  kRate,         // its address opens them too fast
  kDescriptors,  // the remaining descriptors belong to files
  kSilent,       // it said nothing in time
  kLeft,         // it hung up before it said anything whole
  kHttp1,        // it speaks HTTP/1
  kPlaintext,    // it speaks HTTP/2 without TLS to a port with TLS
  kTls,          // it speaks TLS to a port without
  kGarbage,      // it speaks something else
  kHeaders,      // its headers do not end
  kResets,       // it opens streams and resets them
  kControls,     // it sends PING and the like without end
};
inline constexpr size_t kRefusalCount = 13;

// Name of a refusal in metrics and logs, "address" for example.
absl::string_view ConnectionRefusalName(ConnectionRefusal refusal);

struct ConnectionLimits {
  size_t total = 10000;
  size_t per_address = 2048;
  // From one address in a second, as many again at once.
  size_t per_second = 1000;
};

class ConnectionGate {
 public:
  explicit ConnectionGate(const ConnectionLimits& limits) : limits_(limits) {}

  // Counts a connection from `address`, or returns why it is refused. `now` never goes back.
  std::optional<ConnectionRefusal> Admit(const std::string& address, std::chrono::nanoseconds now);
  // A connection from `address` that was admitted is closed.
  void Release(const std::string& address);
  // A connection from `address` was cut because of its bytes: the address opens no other for a
  // second, or up to five when more are cut.
  void Punish(const std::string& address, std::chrono::nanoseconds now);
  // Forgets addresses without a connection, now or in the last second; these may open as many again
  // as at first.
  void Forget(std::chrono::nanoseconds now);

  // Open connections and known addresses.
  size_t open() const { return open_; }
  size_t addresses() const { return addresses_.size(); }

 private:
  struct Address {
    size_t open = 0;
    double allowance = 0;  // connections that it may open at once
    std::chrono::nanoseconds seen{0};
  };

  // Fills the allowance up to `now`.
  void Refill(Address* address, std::chrono::nanoseconds now) const;

  const ConnectionLimits limits_;
  size_t open_ = 0;
  std::map<std::string, Address> addresses_;
};

}  // namespace ballast::server
