#include "server/directory/orphaned_jobs.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "server/jobs/when_all.h"

namespace ballast::server {
namespace {

constexpr std::chrono::milliseconds kAskHomeAgain{500};

}  // namespace

// The home looks for trainers after half of this time, or later when it was slow to make the job.
void OrphanedJobs::AskLater() {
  if (parts_.self->stopping() || std::exchange(asks_later_, true)) return;
  const DirectoryConfig& config = parts_.self->config();
  parts_.strand->PostAfter(2 * std::max(config.job_ttl, config.engine.lease), [this] {
    asks_later_ = false;
    const auto& jobs = parts_.jobs->all();
    const bool runs = std::any_of(jobs.begin(), jobs.end(), [](const auto& entry) {
      return !entry.second.ended && IsDurable(entry.second.plan);
    });
    if (!runs) return;
    AskSoon();
    AskLater();
  });
}

void OrphanedJobs::AskUntilAnswered() {
  Ask([this](const absl::Status& status) {
    if (status.ok()) return;
    if (!absl::IsUnimplemented(status) && !absl::IsFailedPrecondition(status)) return AskSoon();
    BALLAST_LOG(WARN) << "the home does not say which jobs rest: " << status;
  });
}

void OrphanedJobs::AskSoon() {
  if (parts_.self->stopping() || std::exchange(asks_soon_, true)) return;
  parts_.strand->PostAfter(kAskHomeAgain, [this] {
    asks_soon_ = false;
    AskUntilAnswered();
  });
}

void OrphanedJobs::Ask(const Done& done) {
  if (parts_.self->IsHome()) return done(absl::OkStatus());
  std::vector<uint64_t> jobs;
  Told told;
  for (const auto& [id, job] : parts_.jobs->all()) {
    if (job.ended || !IsDurable(job.plan)) continue;
    jobs.push_back(id);
    told[id] = job.told;
  }
  if (jobs.empty()) return done(absl::OkStatus());
  const auto answered = [this, told, done](const absl::StatusOr<std::vector<uint64_t>>& rest) {
    rest.ok() ? LetRest(*rest, told, done) : done(rest.status());
  };
  parts_.peers->WhichRest(parts_.self->home().id, jobs, parts_.strand->Bind(answered));
}

void OrphanedJobs::LetRest(const std::vector<uint64_t>& rest, const Told& told, const Done& done) {
  const auto answers = std::make_shared<WhenAll>(rest.size(), done);
  for (const uint64_t job : rest) {
    const auto asked = told.find(job);
    if (parts_.jobs->Find(job) == nullptr || asked == told.end()) {
      answers->Add(absl::OkStatus());
    } else {
      LetOneRest(job, asked->second, answers);
    }
  }
}

void OrphanedJobs::LetOneRest(uint64_t job, uint64_t told,
                              const std::shared_ptr<WhenAll>& answers) {
  const std::shared_ptr<RoundEngine> engine = parts_.jobs->Find(job);
  parts_.jobs->Ask(engine, [=, this](const JobStatus& status) {
    const LocalJobs::Entry* const local = parts_.jobs->Get(job);
    const bool same = local != nullptr && !local->ended && local->told == told;
    if (!same || status.open_streams != 0) return answers->Add(absl::OkStatus());
    engine->Fail(MissedHere(status.name));
    // After the engine's end. No trainer is left to read the ended job's state, which would
    // otherwise stay for a while.
    parts_.jobs->Ask(engine, [=, this](const JobStatus&) {
      const LocalJobs::Entry* const ended = parts_.jobs->Get(job);
      if (ended != nullptr && ended->ended) parts_.jobs->Drop(job);
      answers->Add(absl::OkStatus());
    });
  });
}

absl::Status OrphanedJobs::MissedHere(const std::string& name) const {
  return ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kJobFinished,
                       absl::StrCat("job \"", name, "\" rests at its home; server ",
                                    parts_.self->id(), " has missed its end"),
                       {.job = name, .server = static_cast<int>(parts_.self->id())});
}

}  // namespace ballast::server
