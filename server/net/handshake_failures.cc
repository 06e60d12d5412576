#include "server/net/handshake_failures.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "common/base/log.h"

namespace ballast::server {
namespace {

constexpr std::array<absl::string_view, kHandshakeCauseCount> kCauseNames = {"no_certificate",
                                                                             "unknown_authority",
                                                                             "expired",
                                                                             "bad_certificate",
                                                                             "refused_by_client",
                                                                             "protocol",
                                                                             "slow",
                                                                             "left",
                                                                             "probe",
                                                                             "other"};

// How gRPC's server begins the one line that it writes for each failed handshake.
constexpr absl::string_view kFailed = "Handshaking failed: ";

struct Words {
  absl::string_view text;
  HandshakeCause cause;
};
// The first match in the line counts: a slow handshake, for example, also ends with a failed read.
constexpr Words kWords[] = {
    {"Handshake timed out", HandshakeCause::kSlow},
    {"peer did not return a certificate", HandshakeCause::kNoCertificate},
    {" alert ", HandshakeCause::kRefusedByClient},
    {"length too short", HandshakeCause::kProbe},
    {"SSL_ERROR_SSL", HandshakeCause::kProtocol},
    {"Cannot check peer", HandshakeCause::kProtocol},
    {"Socket closed", HandshakeCause::kLeft},
    {"Connection reset", HandshakeCause::kLeft},
    {"Broken pipe", HandshakeCause::kLeft},
};

}  // namespace

absl::string_view HandshakeCauseName(HandshakeCause cause) {
  return kCauseNames[static_cast<size_t>(cause)];
}

std::optional<HandshakeCause> HandshakeCauseOf(absl::string_view line) {
  if (!absl::ConsumePrefix(&line, kFailed)) return std::nullopt;
  if (absl::StrContains(line, "certificate verify failed")) return std::nullopt;
  for (const Words& words : kWords) {
    if (absl::StrContains(line, words.text)) return words.cause;
  }
  return HandshakeCause::kOther;
}

void HandshakeFailures::AddTo(MetricRegistry* registry) const {
  for (size_t i = 0; i < kHandshakeCauseCount; ++i) {
    registry->Add("ballast_handshake_failures_total",
                  {{"cause", std::string(kCauseNames[i].data(), kCauseNames[i].size())}},
                  std::shared_ptr<const Counter>(counters_[i].value));
  }
}

void HandshakeFailures::Count(HandshakeCause cause) {
  Counter& counter = *counters_[static_cast<size_t>(cause)].value;
  uint64_t unsaid = 0;
  {
    MutexLock lock(&mu_);
    counter.Add();
    // The server's own probes come every few seconds.
    if (cause == HandshakeCause::kProbe) return;
    unsaid = rates_[static_cast<size_t>(cause)].Due(counter.value(), clock_->Now());
    if (unsaid > 0) ++lines_;
  }
  if (unsaid == 0) return;
  BALLAST_LOG(WARN, LogField("cause", HandshakeCauseName(cause)), LogField("connections", unsaid))
      << "TLS handshakes failed; the address stands in no message of gRPC";
}

uint64_t HandshakeFailures::lines() const {
  MutexLock lock(&mu_);
  return lines_;
}

}  // namespace ballast::server
