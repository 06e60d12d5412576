// HandshakeFailures: counts the connections whose handshake failed, by cause, and says in the log
// that there are some, at most once a minute for each cause.
// Comes from: server/rpc/handshake_watch. Goes to: ballast_handshake_failures_total, the log.
// Thread safety: any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "common/base/sync.h"
#include "common/metrics/registry.h"
#include "server/net/line_rate.h"

namespace ballast::server {

// Why a connection that gRPC had got was closed before it could carry a call.
enum class HandshakeCause {
  kNoCertificate,     // the client shows no certificate
  kUnknownAuthority,  // that of the client is of an authority that security.ca lacks
  kExpired,           // that of the client, or its authority's, has expired
  kBadCertificate,    // that of the client is at fault in another way
  kRefusedByClient,   // the client does not accept the server's certificate, and says so
  kProtocol,          // no TLS of this port: a version, a cipher, other bytes
  kSlow,              // it took too long
  kLeft,              // the client hung up in the middle
  kProbe,             // a hello without content, with which the server probes its own port
  kOther,
};
inline constexpr size_t kHandshakeCauseCount = 10;

// Name of a cause in metrics and logs, "no_certificate" for example.
absl::string_view HandshakeCauseName(HandshakeCause cause);

// The cause that a line of gRPC's log names; none when the line is about something else, and for a
// bad certificate: OpenSSL's own report says more. The texts are those of gRPC 1.51 and OpenSSL
// 3.0; a failure in other words is kOther.
std::optional<HandshakeCause> HandshakeCauseOf(absl::string_view line);

class HandshakeFailures {
 public:
  // `clock` outlives it.
  explicit HandshakeFailures(const Clock* clock) : clock_(clock) {}

  // `registry` has a series for each cause from now on.
  void AddTo(MetricRegistry* registry) const;
  void Count(HandshakeCause cause);

  uint64_t counted(HandshakeCause cause) const {
    return counters_[static_cast<size_t>(cause)].value->value();
  }
  uint64_t lines() const;

 private:
  struct OneCounter {
    std::shared_ptr<Counter> value = std::make_shared<Counter>();
  };

  const Clock* const clock_;
  const std::array<OneCounter, kHandshakeCauseCount> counters_;
  mutable Mutex mu_;
  std::array<LineRate, kHandshakeCauseCount> rates_ ABSL_GUARDED_BY(mu_);
  uint64_t lines_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace ballast::server
