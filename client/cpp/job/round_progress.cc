#include "client/cpp/job/round_progress.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"

namespace ballast::client {
namespace {

uint64_t Bits(double value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// Name of the first field in which two servers' results differ; null when they agree.
const char* FirstDifference(const RoundResult& a, const RoundResult& b) {
  if (a.applied != b.applied) return "applied";
  if (Bits(a.grad_norm) != Bits(b.grad_norm)) return "grad_norm";
  if (Bits(a.clip_coef) != Bits(b.clip_coef)) return "clip_coef";
  if (Bits(a.loss_scale) != Bits(b.loss_scale)) return "loss_scale";
  if (a.opt_step != b.opt_step) return "opt_step";
  if (a.nonfinite != b.nonfinite) return "nonfinite";
  if (a.halted != b.halted) return "halted";
  if (a.consecutive_skips != b.consecutive_skips) return "consecutive_skips";
  if (!(a.first_nonfinite == b.first_nonfinite)) return "first_nonfinite";
  if (!(a.policy == b.policy)) return "policy";
  return nullptr;
}

uint64_t NanosBetween(RoundProgress::Time from, RoundProgress::Time to) {
  if (to <= from) return 0;
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(to - from).count());
}

}  // namespace

RoundProgress::RoundProgress(uint64_t round, std::vector<uint32_t> server_ids,
                             std::vector<uint64_t> owned_bytes, Time start)
    : round_(round), start_(start), pushed_(start), decided_(start), last_weight_(start) {
  for (size_t i = 0; i < server_ids.size(); ++i) {
    ServerProgress server;
    server.id = server_ids[i];
    server.owned_bytes = owned_bytes[i];
    servers_.push_back(server);
  }
}

absl::Status RoundProgress::Malformed(size_t index, const char* what) const {
  ErrorFields fields;
  fields.round = round_;
  fields.server = static_cast<int>(servers_[index].id);
  return ReasonedError(absl::StatusCode::kInternal, Reason::kBadFrame,
                       absl::StrCat("server ", servers_[index].id, " in round ", round_, ": ", what,
                                    "; please report this"),
                       fields);
}

absl::Status RoundProgress::OnResult(size_t index, const RoundResult& result, Time now) {
  ServerProgress& server = servers_[index];
  if (result.round != round_) return Malformed(index, "result of another round");
  if (server.has_result) return Malformed(index, "second result");
  if (result.weight_bytes > server.owned_bytes) {
    return Malformed(index, "announces more weights than it owns");
  }
  server.has_result = true;
  server.weight_bytes = result.weight_bytes;
  ++results_;
  if (!has_result_) {
    has_result_ = true;
    result_ = result;
  } else if (const char* field = FirstDifference(result_, result)) {
    ErrorFields fields;
    fields.round = round_;
    fields.server = static_cast<int>(server.id);
    return ReasonedError(
        absl::StatusCode::kAborted, Reason::kVoteMismatch,
        absl::StrCat("servers disagree about ", field, " of round ", round_, " (server ", server.id,
                     " differs): grad_norm ", result_.grad_norm, " and ", result.grad_norm,
                     ", opt_step ", result_.opt_step, " and ", result.opt_step,
                     "; the job cannot continue"),
        fields);
  }
  result_.collect_ns = std::max(result_.collect_ns, result.collect_ns);
  result_.vote_ns = std::max(result_.vote_ns, result.vote_ns);
  decided_ = now;
  return absl::OkStatus();
}

absl::Status RoundProgress::OnWeight(size_t index, uint64_t version, uint64_t bytes, Time now) {
  ServerProgress& server = servers_[index];
  if (!server.has_result || server.done) {
    return Malformed(index, "weights before the result or after the end");
  }
  if (version != round_ + 1) return Malformed(index, "weights of another version");
  server.received_bytes += bytes;
  if (server.received_bytes > server.weight_bytes) {
    return Malformed(index, "more weights than announced");
  }
  last_weight_ = now;
  return absl::OkStatus();
}

absl::Status RoundProgress::OnDone(size_t index, const v1::RoundDone& done) {
  ServerProgress& server = servers_[index];
  if (done.round() != round_ || !server.has_result || server.done) {
    return Malformed(index, "unexpected end of a round");
  }
  if (server.received_bytes != server.weight_bytes) {
    return Malformed(index, "fewer weights than announced");
  }
  server.done = true;
  ++done_;
  step_ns_ = std::max<uint64_t>(step_ns_, done.step_ns());
  weight_overflows_ += done.weight_overflows();
  return absl::OkStatus();
}

void RoundProgress::Restart(size_t index) {
  ServerProgress& server = servers_[index];
  if (server.has_result) --results_;
  server.has_result = false;
  server.weight_bytes = 0;
  server.received_bytes = 0;
}

void RoundProgress::OnPushed(Time now) {
  if (has_pushed_) return;
  has_pushed_ = true;
  pushed_ = now;
}

UnappliedRound RoundProgress::Unapplied() const { return UnappliedOf(result_); }

PolicyView RoundProgress::Policy() const {
  PolicyState state;
  state.loss_scale = result_.loss_scale;
  state.opt_step = result_.opt_step;
  state.consecutive_skips = result_.consecutive_skips;
  return {result_.policy.value_or(state), result_.first_nonfinite};
}

std::vector<uint32_t> RoundProgress::Missing() const {
  std::vector<uint32_t> ids;
  for (const ServerProgress& server : servers_) {
    if (!server.done) ids.push_back(server.id);
  }
  return ids;
}

RoundReport RoundProgress::Report(Time now) const {
  RoundReport report;
  report.round = round_;
  report.applied = result_.applied;
  report.grad_norm = result_.grad_norm;
  report.clip_coef = result_.clip_coef;
  report.loss_scale = result_.loss_scale;
  report.opt_step = result_.opt_step;
  report.nonfinite = result_.nonfinite;
  report.consecutive_skips = result_.consecutive_skips;
  report.weight_overflows = weight_overflows_;
  for (const ServerProgress& server : servers_) report.bytes_down += server.received_bytes;
  // The last ack may be merged into one that comes after the result.
  const Time pushed = has_pushed_ ? std::min(pushed_, decided_) : decided_;
  report.push_ns = NanosBetween(start_, pushed);
  report.wait_ns = NanosBetween(pushed, decided_);
  report.pull_ns = NanosBetween(decided_, report.bytes_down > 0 ? last_weight_ : now);
  report.collect_ns = result_.collect_ns;
  report.vote_ns = result_.vote_ns;
  report.step_ns = step_ns_;
  return report;
}

}  // namespace ballast::client
