// Which cause a line of gRPC's log names, and how often the log of the server has a line of its
// own.
#include "server/net/handshake_failures.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "gtest/gtest.h"

namespace ballast::server {
namespace {

using Cause = HandshakeCause;

// As gRPC 1.51 writes it, without the parts that change.
std::string Tls(absl::string_view reason) {
  return absl::StrCat(
      "Handshaking failed: UNKNOWN:Tls handshake failed: SSL_ERROR_SSL: error:0A000000:SSL "
      "routines::",
      reason, " {tsi_code:10, tsi_error:\"TSI_PROTOCOL_FAILURE\"}");
}

TEST(HandshakeFailuresTest, EachLineHasItsCause) {
  const std::vector<std::pair<std::string, std::optional<Cause>>> lines = {
      {Tls("peer did not return a certificate"), Cause::kNoCertificate},
      {Tls("tlsv1 alert unknown ca"), Cause::kRefusedByClient},
      {Tls("sslv3 alert certificate expired"), Cause::kRefusedByClient},
      {Tls("length too short"), Cause::kProbe},
      {Tls("unsupported protocol"), Cause::kProtocol},
      {Tls("certificate verify failed"), std::nullopt},
      {"Handshaking failed: UNKNOWN:Cannot check peer: missing selected ALPN property. {}",
       Cause::kProtocol},
      {"Handshaking failed: UNKNOWN:Handshake read failed {children:[UNKNOWN:FD Shutdown "
       "{children:[UNKNOWN:Handshake timed out {}]}]}",
       Cause::kSlow},
      {"Handshaking failed: UNKNOWN:Handshake read failed {children:[INTERNAL:Socket closed {}]}",
       Cause::kLeft},
      {"Handshaking failed: UNKNOWN:something new", Cause::kOther},
      {"Security handshake failed: UNKNOWN:Tls handshake failed: SSL_ERROR_SSL: error",
       std::nullopt},
      {"", std::nullopt},
  };
  for (const auto& [line, cause] : lines) EXPECT_EQ(HandshakeCauseOf(line), cause) << line;
}

TEST(HandshakeFailuresTest, EachIsCountedAndTheLogHasALineAMinuteForEachCause) {
  FakeClock clock;
  HandshakeFailures failures(&clock);
  for (int i = 0; i < 1000; ++i) failures.Count(Cause::kExpired);
  for (int i = 0; i < 1000; ++i) failures.Count(Cause::kSlow);
  EXPECT_EQ(failures.counted(Cause::kExpired), 1000u);
  EXPECT_EQ(failures.counted(Cause::kSlow), 1000u);
  EXPECT_EQ(failures.counted(Cause::kOther), 0u);
  EXPECT_EQ(failures.lines(), 2u);
  clock.Advance(std::chrono::minutes(1));
  for (int i = 0; i < 1000; ++i) failures.Count(Cause::kExpired);
  EXPECT_EQ(failures.lines(), 3u);
}

TEST(HandshakeFailuresTest, TheServersOwnProbesAreCountedWithoutALine) {
  FakeClock clock;
  HandshakeFailures failures(&clock);
  failures.Count(Cause::kProbe);
  EXPECT_EQ(failures.counted(Cause::kProbe), 1u);
  EXPECT_EQ(failures.lines(), 0u);
}

}  // namespace
}  // namespace ballast::server
