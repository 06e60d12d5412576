#include "server/net/connection_gate.h"

#include <algorithm>
#include <array>

#include "common/base/check.h"

namespace ballast::server {
namespace {

constexpr std::array<absl::string_view, kRefusalCount> kRefusalNames = {
    "full",      "address", "rate",    "descriptors", "silent", "left",    "http1",
    "plaintext", "tls",     "garbage", "headers",     "resets", "controls"};
constexpr std::chrono::seconds kForgetAfter(1);
// Longest time, in seconds, that cut connections keep their address out.
constexpr double kPunishedMax = 5;

}  // namespace

absl::string_view ConnectionRefusalName(ConnectionRefusal refusal) {
  return kRefusalNames[static_cast<size_t>(refusal)];
}

void ConnectionGate::Refill(Address* address, std::chrono::nanoseconds now) const {
  const double seconds = std::chrono::duration<double>(now - address->seen).count();
  const auto most = static_cast<double>(limits_.per_second);
  address->allowance = std::min(most, address->allowance + seconds * most);
  address->seen = now;
}

std::optional<ConnectionRefusal> ConnectionGate::Admit(const std::string& address,
                                                       std::chrono::nanoseconds now) {
  if (open_ >= limits_.total) return ConnectionRefusal::kFull;
  const auto [found, is_new] = addresses_.try_emplace(address);
  Address& known = found->second;
  if (is_new) known = {0, static_cast<double>(limits_.per_second), now};
  Refill(&known, now);
  if (known.open >= limits_.per_address) return ConnectionRefusal::kAddress;
  if (known.allowance < 1) return ConnectionRefusal::kRate;
  known.allowance -= 1;
  ++known.open;
  ++open_;
  return std::nullopt;
}

void ConnectionGate::Release(const std::string& address) {
  const auto found = addresses_.find(address);
  BALLAST_CHECK(found != addresses_.end() && found->second.open > 0);
  --found->second.open;
  --open_;
}

void ConnectionGate::Punish(const std::string& address, std::chrono::nanoseconds now) {
  const auto found = addresses_.find(address);
  if (found == addresses_.end()) return;
  Refill(&found->second, now);
  double& allowance = found->second.allowance;
  const auto second = static_cast<double>(limits_.per_second);
  allowance = std::max(std::min(allowance, 0.0) - second, -kPunishedMax * second);
}

void ConnectionGate::Forget(std::chrono::nanoseconds now) {
  for (auto it = addresses_.begin(); it != addresses_.end();) {
    Address& known = it->second;
    const bool idle = known.open == 0 && now - known.seen >= kForgetAfter;
    if (idle) Refill(&known, now);
    const bool whole = known.allowance >= static_cast<double>(limits_.per_second);
    it = idle && whole ? addresses_.erase(it) : std::next(it);
  }
}

}  // namespace ballast::server
