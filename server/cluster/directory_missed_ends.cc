// Home: jobs whose end a server has missed. It was down when the trainers left, or went down
// before the end was on its disk, or a trainer was killed when it had left the home but not yet
// this server. Such a job waits here, with its memory, for trainers that do not come. Its home
// knows that it rests, and is asked: after a start, when a seat is free, and before a new job is
// refused for lack of room.
// Thread safety: on the strand.
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "server/cluster/home.h"

namespace ballast::server {
namespace {

constexpr std::chrono::milliseconds kAskHomeAgain{500};

}  // namespace

// --- At the home --------------------------------------------------------------------------------

void Home::WhichRest(const std::vector<uint64_t>& jobs,
                     const std::function<void(absl::StatusOr<std::vector<uint64_t>>)>& done) const {
  if (absl::Status st = parts_.self->CheckHome(); !st.ok()) return done(st);
  const absl::flat_hash_set<uint64_t> asked(jobs.begin(), jobs.end());
  std::vector<uint64_t> rest;
  for (const auto& [name, plan] : resting_) {
    const auto pending = pending_.find(name);
    // Peers may still have to hear of its growth.
    const bool moves =
        pending != pending_.end() && (pending->second.creating || pending->second.growing);
    if (!moves && asked.contains(plan.job)) rest.push_back(plan.job);
  }
  done(std::move(rest));
}

absl::Status Home::NoRoom(const JobPlan& plan, const absl::Status& why) const {
  const MemoryRoom all{.bytes = config().memory_budget_bytes,
                       .state_bytes = config().state_budget_bytes};
  const auto alone = PlanMemory(plan, parts_.self->id(), all, config().window_extents_min);
  if (!alone.ok()) return why;
  for (const auto& [name, pending] : pending_) {
    if (!pending.unconfirmed) continue;
    return ReasonedError(
        absl::StatusCode::kUnavailable, Reason::kRecovering,
        absl::StrCat("server ", parts_.self->id(), " has no room for job \"", plan.spec.name,
                     "\" before it has heard from its peers whether job \"", name,
                     "\" goes on; call again"),
        {.job = plan.spec.name, .server = static_cast<int>(parts_.self->id())});
  }
  return why;
}

// --- At every other server ----------------------------------------------------------------------

void Home::MakeForHome(const JobPlan& plan, const std::function<void(absl::Status)>& done) {
  const auto self = shared_from_this();
  parts_.jobs->MakeForHome(plan, [=, this](const absl::Status& status) {
    if (ReasonOf(status) != Reason::kOverBudget) return done(status);
    AskWhichRest([=, this](const absl::Status& asked) {
      asked.ok() ? parts_.jobs->MakeForHome(plan, done) : done(status);
    });
  });
}

void Home::AskUntilAnswered() {
  AskWhichRest([this, self = shared_from_this()](const absl::Status& status) {
    if (status.ok()) return;
    if (!absl::IsUnimplemented(status) && !absl::IsFailedPrecondition(status)) return AskSoon();
    BALLAST_LOG(WARN) << "the home does not say which jobs rest: " << status;
  });
}

void Home::AskSoon() {
  if (parts_.self->stopping() || std::exchange(asks_soon_, true)) return;
  parts_.strand->PostAfter(kAskHomeAgain, [self = shared_from_this()] {
    self->asks_soon_ = false;
    self->AskUntilAnswered();
  });
}

void Home::AskWhichRest(const std::function<void(absl::Status)>& done) {
  if (parts_.self->IsHome()) return done(absl::OkStatus());
  std::vector<uint64_t> jobs;
  std::map<uint64_t, uint64_t> told;
  for (const auto& [job, local] : parts_.jobs->all()) {
    if (local.ended || local.plan.spec.durability == Durability::kNone) continue;
    jobs.push_back(job);
    told[job] = local.told;
  }
  if (jobs.empty()) return done(absl::OkStatus());
  parts_.peers->WhichRest(
      parts_.self->home().id, jobs,
      [self = shared_from_this(), told, done](const absl::StatusOr<std::vector<uint64_t>>& rest) {
        self->Post([self = self.get(), told, done, rest] {
          rest.ok() ? self->LetRest(*rest, told, done) : done(rest.status());
        });
      });
}

// Not what the home has woken up since it was asked, nor what somebody still has to leave here.
void Home::LetRest(const std::vector<uint64_t>& rest, const std::map<uint64_t, uint64_t>& told,
                   const std::function<void(absl::Status)>& done) {
  const auto self = shared_from_this();
  auto gather = std::make_shared<Gather>(rest.size(), done);
  for (const uint64_t job : rest) {
    const std::shared_ptr<RoundEngine> engine = Find(job);
    const auto asked = told.find(job);
    if (engine == nullptr || asked == told.end()) {
      gather->Add(absl::OkStatus());
      continue;
    }
    parts_.jobs->Ask(engine, [=, this, before = asked->second](const JobStatus& snapshot) {
      const LocalJobs::Job* const local = parts_.jobs->Get(job);
      if (local == nullptr || local->ended || local->told != before || snapshot.open_streams != 0) {
        return gather->Add(absl::OkStatus());
      }
      engine->Fail(
          ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kJobFinished,
                        absl::StrCat("job \"", snapshot.name, "\" rests at its home; server ",
                                     parts_.self->id(), " has missed its end"),
                        {.job = snapshot.name, .server = static_cast<int>(parts_.self->id())}));
      // Behind the end. Nobody is there to read what an ended job keeps for a while.
      parts_.jobs->Ask(engine, [this, self, job, gather](const JobStatus&) {
        const LocalJobs::Job* const ended = parts_.jobs->Get(job);
        if (ended != nullptr && ended->ended) parts_.jobs->Drop(job);
        gather->Add(absl::OkStatus());
      });
    });
  }
}

}  // namespace ballast::server
