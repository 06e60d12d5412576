#include "server/rpc/handshake_watch.h"

#include <grpc/support/log.h>

#include <cstdio>

#include "absl/strings/match.h"
#include "common/tls/client_faults.h"

namespace ballast::server {
namespace {

// Above all severities.
constexpr int kNothing = GPR_LOG_SEVERITY_ERROR + 1;
int shown_from = kNothing;

int SeverityOf(absl::string_view verbosity) {
  if (absl::EqualsIgnoreCase(verbosity, "DEBUG")) return GPR_LOG_SEVERITY_DEBUG;
  if (absl::EqualsIgnoreCase(verbosity, "INFO")) return GPR_LOG_SEVERITY_INFO;
  if (absl::EqualsIgnoreCase(verbosity, "ERROR")) return GPR_LOG_SEVERITY_ERROR;
  return kNothing;
}

void OnGrpcLine(gpr_log_func_args* line) {
  const auto cause = HandshakeCauseOf(line->message);
  if (cause.has_value()) Handshakes().Count(*cause);
  if (line->severity < shown_from) return;
  std::fprintf(stderr, "gRPC %s %s:%d %s\n", gpr_log_severity_string(line->severity), line->file,
               line->line, line->message);
}

class Faults : public ClientFaultSink {
 public:
  void OnClientFault(ClientFault fault) override { Handshakes().Count(CauseOf(fault)); }

 private:
  static HandshakeCause CauseOf(ClientFault fault) {
    switch (fault) {
      case ClientFault::kUnknownAuthority:
        return HandshakeCause::kUnknownAuthority;
      case ClientFault::kExpired:
        return HandshakeCause::kExpired;
      case ClientFault::kOther:
        break;
    }
    return HandshakeCause::kBadCertificate;
  }
};

}  // namespace

HandshakeFailures& Handshakes() {
  // Threads of gRPC may log while the process ends, when RealClock::Get() is gone already.
  static auto* const failures = new HandshakeFailures(new RealClock());
  return *failures;
}

void WatchHandshakes(const char* verbosity) {
  shown_from = SeverityOf(verbosity == nullptr ? "" : verbosity);
  static auto* const faults = new Faults();
  WatchClientFaults(faults);
  gpr_set_log_function(OnGrpcLine);
  // The line about a failed handshake is one of debugging. There are few others: none for a call.
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_DEBUG);
}

}  // namespace ballast::server
