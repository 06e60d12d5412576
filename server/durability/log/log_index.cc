#include "server/durability/log/log_index.h"

#include "absl/strings/str_cat.h"

namespace ballast::server {
namespace {

absl::Status Refused(const char* what, uint64_t round, uint32_t epoch, const std::string& why) {
  return absl::InternalError(absl::StrCat(what, " of round ", round, ", epoch ", epoch,
                                          " may not be logged: ", why,
                                          "; the first record stays as it is"));
}

}  // namespace

const LoggedRound* LogIndex::Find(uint64_t round) const {
  const auto found = rounds_.find(round);
  return found == rounds_.end() ? nullptr : &found->second;
}

absl::Status LogIndex::Check(const LoggedExtent& extent) const {
  const LoggedRound* const round = Find(extent.round);
  if (round == nullptr) return absl::OkStatus();
  const std::string what = absl::StrCat("extent ", extent.extent);
  if (round->decision.has_value()) {
    return Refused(what.c_str(), extent.round, extent.epoch, "the round is decided");
  }
  if (round->prepared.has_value() && round->prepared->epoch >= extent.epoch) {
    return Refused(what.c_str(), extent.round, extent.epoch,
                   absl::StrCat("the round is prepared in epoch ", round->prepared->epoch));
  }
  const auto found = round->extents.find(extent.extent);
  if (found != round->extents.end() && found->second.epoch >= extent.epoch) {
    return Refused(what.c_str(), extent.round, extent.epoch,
                   absl::StrCat("it is logged in epoch ", found->second.epoch));
  }
  return absl::OkStatus();
}

absl::Status LogIndex::Check(const PreparedRecord& record) const {
  const LoggedRound* const round = Find(record.round);
  if (round == nullptr) return absl::OkStatus();
  if (round->decision.has_value()) {
    return Refused("PREPARED", record.round, record.epoch, "the round is decided");
  }
  if (round->prepared.has_value() && round->prepared->epoch >= record.epoch) {
    return Refused("PREPARED", record.round, record.epoch,
                   absl::StrCat("it is prepared in epoch ", round->prepared->epoch));
  }
  for (const auto& [number, extent] : round->extents) {
    if (extent.epoch > record.epoch) {
      return Refused("PREPARED", record.round, record.epoch,
                     absl::StrCat("extent ", number, " is logged in epoch ", extent.epoch));
    }
  }
  return absl::OkStatus();
}

absl::Status LogIndex::Check(const DecisionRecord& record) const {
  const LoggedRound* const round = Find(record.round);
  if (round == nullptr || !round->decision.has_value()) return absl::OkStatus();
  return Refused("DECISION", record.round, record.epoch,
                 absl::StrCat("it is decided in epoch ", round->decision->epoch));
}

absl::Status LogIndex::Check(const RatiosRecord& record) const {
  const LoggedRound* const round = Find(record.round);
  const auto refused = [&](const std::string& why) {
    return Refused("RATIOS", record.round, record.epoch, why);
  };
  if (round == nullptr || !round->prepared.has_value()) return refused("it is not prepared");
  if (round->decision.has_value()) return refused("the round is decided");
  if (round->prepared->epoch != record.epoch) {
    return refused(absl::StrCat("it is prepared in epoch ", round->prepared->epoch));
  }
  return round->ratios.has_value() ? refused("they are logged") : absl::OkStatus();
}

void LogIndex::Add(const LoggedExtent& extent) {
  if (!Check(extent).ok()) return;
  LoggedRound& round = rounds_[extent.round];
  round.extents[extent.extent] = extent;
  // Check let it pass, so a PREPARED is of an older epoch and counts no longer.
  round.prepared.reset();
  round.ratios.reset();
}

void LogIndex::Add(const PreparedRecord& record) {
  const LoggedRound* const round = Find(record.round);
  const bool lacking =
      round != nullptr && round->decision.has_value() && !round->prepared.has_value();
  if (!lacking && !Check(record).ok()) return;
  LoggedRound& taken = rounds_[record.round];
  taken.prepared = record;
  if (!lacking) taken.ratios.reset();  // Of an older epoch.
}

void LogIndex::Add(const DecisionRecord& record) {
  if (Check(record).ok()) rounds_[record.round].decision = record;
}

void LogIndex::Add(const RatiosRecord& record) {
  const LoggedRound* const round = Find(record.round);
  const bool lacking =
      round != nullptr && round->decision.has_value() && !round->ratios.has_value();
  if (lacking || Check(record).ok()) rounds_[record.round].ratios = record;
}

void LogIndex::TrimTo(uint64_t round) {
  if (round == 0) return;
  rounds_.erase(rounds_.begin(), rounds_.lower_bound(round - 1));
  const auto last = rounds_.find(round - 1);
  if (last != rounds_.end()) last->second.extents.clear();
}

void LogIndex::BeginEpoch(uint32_t epoch, uint64_t start_round) {
  for (auto at = rounds_.lower_bound(start_round); at != rounds_.end(); ++at) {
    LoggedRound& round = at->second;
    if (round.decision.has_value()) continue;  // Then it is of this epoch.
    std::erase_if(round.extents, [epoch](const auto& one) { return one.second.epoch < epoch; });
    if (round.prepared.has_value() && round.prepared->epoch < epoch) round.prepared.reset();
    if (!round.prepared.has_value()) round.ratios.reset();
  }
}

absl::Status LogIndex::CheckWhole(const PreparedRecord& record) const {
  const LoggedRound* const round = Find(record.round);
  for (const ExtentNorm& norm : record.vote.norms) {
    if (norm.sumsq == 0) continue;
    if (round != nullptr && round->extents.count(norm.extent) != 0) continue;
    return absl::InternalError(absl::StrCat("PREPARED of round ", record.round, ", epoch ",
                                            record.epoch, " counts extent ", norm.extent,
                                            ", which is not in the log"));
  }
  return absl::OkStatus();
}

}  // namespace ballast::server
