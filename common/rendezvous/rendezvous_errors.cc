#include "common/rendezvous/rendezvous_errors.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/reason.h"
#include "common/bytes/crc32c.h"
#include "common/types/enum_names.h"

namespace ballast::rendezvous {
namespace {

// The most missing ranks that are named one by one.
constexpr size_t kNamedMax = 8;

absl::Status Refused(absl::StatusCode code, Reason reason, const std::string& job, uint32_t slot,
                     const std::string& text) {
  return ReasonedError(code, reason, text, {.job = job, .slot = static_cast<int>(slot)});
}

absl::Status Bad(const std::string& job, const Call& call, const std::string& text) {
  return Refused(absl::StatusCode::kInvalidArgument, Reason::kBadArgument, job, call.slot,
                 absl::StrCat("rank ", call.slot, " of job \"", job, "\": ", text));
}

bool HasBuckets(CollectivePhase phase) {
  return phase == CollectivePhase::kReduceScatter || phase == CollectivePhase::kAllGather;
}

std::string SecondsText(std::chrono::nanoseconds time) {
  const double seconds = std::chrono::duration<double>(time).count();
  return seconds < 10 ? absl::StrFormat("%.3g s", seconds) : absl::StrFormat("%.0f s", seconds);
}

std::string HeardText(const RankHeard& rank) {
  if (!rank.heard) {
    return absl::StrCat("not heard since ",
                        rank.since_epoch == 0 ? "the home began to listen, " : "it took its seat, ",
                        SecondsText(rank.ago), " ago");
  }
  const std::string doing = DoingText(rank.doing);
  return absl::StrCat("last heard ", SecondsText(rank.ago), " ago", doing.empty() ? "" : ", ",
                      doing);
}

std::string GenerationText(uint32_t generation, uint32_t epoch) {
  return absl::StrCat("generation ", generation, " of the communicators of epoch ", epoch);
}

absl::Status Ended(const std::string& job, uint32_t slot, const std::string& text) {
  return Refused(absl::StatusCode::kAborted, Reason::kRendezvousEnded, job, slot, text);
}

int SlotOf(const Missing& one) { return static_cast<int>(one.rank.slot); }

bool IsTag(const std::string& tag) {
  if (tag.empty() || tag.size() > kTagBytesMax) return false;
  return std::all_of(tag.begin(), tag.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
  });
}

std::string Checksum(const std::string& id) {
  return absl::StrFormat("%08x", Crc32c(id.data(), id.size()));
}

}  // namespace

std::string DoingText(const Doing& doing) {
  if (doing.phase == CollectivePhase::kNone) return "";
  std::string text =
      absl::StrCat(doing.phase == CollectivePhase::kInit ? "" : "in ", NameOf(doing.phase));
  if (HasBuckets(doing.phase)) absl::StrAppend(&text, " of bucket ", doing.bucket);
  if (doing.round != 0) absl::StrAppend(&text, " of round ", doing.round);
  return text;
}

absl::Status StaleEpoch(const std::string& job, uint32_t called, const Epoch& epoch) {
  const std::string state = called == epoch.number
                                ? " ends: trainers come or go"
                                : absl::StrCat(" is over: the job is in epoch ", epoch.number);
  return ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kStaleEpoch,
                       absl::StrCat("epoch ", called, " of job \"", job, "\"", state,
                                    "; abort all communicators of it, and begin again in the next "
                                    "epoch"),
                       {.job = job});
}

absl::Status FutureEpoch(const std::string& job, const Call& call, const Epoch& epoch) {
  return Refused(
      absl::StatusCode::kFailedPrecondition, Reason::kFutureEpoch, job, call.slot,
      absl::StrCat("rank ", call.slot, " of job \"", job, "\" speaks of epoch ", call.epoch,
                   ", and the job is in epoch ", epoch.number, "; use the epoch of the client"));
}

absl::Status OutsideTheWorld(const std::string& job, const Call& call, const Epoch& epoch) {
  return Bad(job, call,
             absl::StrCat("it is outside of the world of epoch ", epoch.number, ", which has ",
                          epoch.ranks.size(), " ranks, ", epoch.ranks.begin()->first, " to ",
                          epoch.ranks.rbegin()->first));
}

absl::Status SeatOfAnother(const std::string& job, const Call& call) {
  return Refused(absl::StatusCode::kFailedPrecondition, Reason::kWrongIncarnation, job, call.slot,
                 absl::StrCat("another process holds the seat of rank ", call.slot, " of job \"",
                              job, "\" in epoch ", call.epoch, "; end this process"));
}

absl::Status CheckForm(const std::string& job, const Call& call) {
  if (call.generation == 0) return Bad(job, call, "generation 0; the first one is 1");
  if (!IsTag(call.tag)) {
    return Bad(job, call,
               absl::StrCat("a tag of ", call.tag.size(), " bytes; a tag is 1 to ", kTagBytesMax,
                            " letters a-z, digits, '.', '_' or '-'"));
  }
  if (call.id.size() > kIdBytesMax) {
    return Bad(
        job, call,
        absl::StrCat("an id of ", call.id.size(), " bytes is above the limit of ", kIdBytesMax));
  }
  if (call.act == Act::kGiveUp) return absl::OkStatus();
  if (call.act == Act::kReady && call.id.empty()) {
    return Bad(job, call, "it is ready without an id; give the one that its communicator has");
  }
  if (call.timeout <= std::chrono::nanoseconds(0) || call.timeout > kTimeoutMax) {
    return Bad(job, call,
               absl::StrCat("a time limit of ", SecondsText(call.timeout),
                            "; it is above 0 s and at most 86400 s"));
  }
  return absl::OkStatus();
}

absl::Status NotTheGiver(const std::string& job, const Call& call, uint32_t leader) {
  if (call.slot == leader) {
    return Bad(job, call, "it is the lowest rank, which gives the id, and it gives none");
  }
  return Bad(job, call,
             absl::StrCat("it gives an id; rank ", leader,
                          ", the lowest, gives it, and the others "
                          "wait for it with an empty one"));
}

absl::Status UsedId(const std::string& job, const Call& call) {
  return Bad(job, call,
             absl::StrCat("the id with checksum ", Checksum(call.id),
                          " was used before; make a new one for each communicator"));
}

absl::Status OtherId(const std::string& job, const Call& call, const std::string& written) {
  return Refused(absl::StatusCode::kInvalidArgument, Reason::kConflict, job, call.slot,
                 absl::StrCat("rank ", call.slot, " of job \"", job, "\" has an id with checksum ",
                              Checksum(call.id), " for \"", call.tag, "\" of ",
                              GenerationText(call.generation, call.epoch),
                              ", and the one that is written has ", Checksum(written),
                              "; give it up, and begin the next generation"));
}

absl::Status TooManyTags(const std::string& job, const Call& call) {
  return Refused(absl::StatusCode::kResourceExhausted, Reason::kOverBudget, job, call.slot,
                 absl::StrCat("tag \"", call.tag, "\" of job \"", job, "\" is one more than the ",
                              kTagsMax, " that a generation may have; use fewer communicators"));
}

absl::Status AlreadyOpen(const std::string& job, const Call& call) {
  return Ended(job, call.slot,
               absl::StrCat("rank ", call.slot, " asks for the id of \"", call.tag, "\" of ",
                            GenerationText(call.generation, call.epoch),
                            ", which every rank uses already; abort its communicators, and begin "
                            "the next generation"));
}

absl::Status OlderGeneration(const std::string& job, const Call& call, uint32_t newest) {
  return Ended(job, call.slot,
               absl::StrCat(GenerationText(call.generation, call.epoch), " is over: generation ",
                            newest, " has begun; abort its communicators, and take part in that"));
}

absl::Status NewerBegun(const std::string& job, uint32_t generation, const Call& call) {
  return Ended(job, call.slot,
               absl::StrCat(GenerationText(generation, call.epoch), " is over: rank ", call.slot,
                            " has begun generation ", call.generation,
                            "; abort its communicators, and take part in that"));
}

absl::Status GivenUp(const std::string& job, const Call& call) {
  std::string why = call.why.substr(0, kWhyBytesMax);
  for (char& c : why) c = c >= ' ' && c < 0x7F ? c : '?';
  return Ended(
      job, call.slot,
      absl::StrCat("rank ", call.slot, " gave up ", GenerationText(call.generation, call.epoch),
                   ": ", why.empty() ? "no reason given" : why,
                   "; abort its communicators, and begin the next generation"));
}

absl::Status NotThere(const std::string& job, uint32_t epoch, const std::vector<Missing>& missing,
                      std::chrono::nanoseconds timeout) {
  std::string text;
  for (size_t i = 0; i < std::min(missing.size(), kNamedMax); ++i) {
    const Missing& one = missing[i];
    absl::StrAppend(&text, i == 0 ? "" : "; ", "rank ", one.rank.slot, " of epoch ", epoch,
                    one.came ? " did not become ready within " : " did not arrive within ",
                    SecondsText(timeout), " (", HeardText(one.rank), ")");
  }
  if (missing.size() > kNamedMax) {
    absl::StrAppend(&text, "; and ", missing.size() - kNamedMax, " more");
  }
  if (missing.empty()) {
    text = absl::StrCat("every rank of epoch ", epoch, " is ready, and the communicator did not ",
                        "open within ", SecondsText(timeout), "; begin the next generation");
  }
  return ReasonedError(absl::StatusCode::kDeadlineExceeded, Reason::kTrainerLost, text,
                       {.job = job, .slot = missing.empty() ? -1 : SlotOf(missing.front())});
}

}  // namespace ballast::rendezvous
