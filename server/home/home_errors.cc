#include "server/home/home_errors.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/reason.h"
#include "common/text/names.h"
#include "server/quota/job_share.h"

namespace ballast::server::home {
namespace {

ErrorFields At(const std::string& job, uint32_t slot) {
  return {.job = job, .slot = static_cast<int>(slot)};
}

}  // namespace

absl::Status NameTaken(const AttachCall& call, const JobPlan& plan, bool ended) {
  const std::string& name = plan.spec.name;
  std::string text = absl::StrCat("job \"", name, "\" ");
  if (!IsDurable(plan)) {
    absl::StrAppend(&text, ended ? "has ended, and its name stays taken for a while "
                                   "(timing.job_ttl); use another name"
                                 : "already has all its trainers; use another name");
  } else {
    absl::StrAppend(&text,
                    ended ? "was run before and is kept on disk" : "already has all its trainers",
                    "; use resume=\"auto\" to continue it, another name, or delete it with "
                    "`ballastctl jobs delete ",
                    name, ended ? "`" : " --force`");
  }
  return ReasonedError(absl::StatusCode::kAlreadyExists, Reason::kNameInUse, text,
                       At(name, call.slot));
}

absl::Status AttachTimedOut(const std::string& job, const std::vector<uint32_t>& missing,
                            uint32_t world) {
  return ReasonedError(
      absl::StatusCode::kDeadlineExceeded, Reason::kAttachTimeout,
      absl::StrCat("job \"", job, "\" waited in vain for slots ", absl::StrJoin(missing, ", "),
                   " of a world of ", world, "; start them, or check the world size"),
      {.job = job});
}

absl::Status GatheredInVain(const std::string& job, uint32_t slot, const Gathering& gathering) {
  return ReasonedError(absl::StatusCode::kDeadlineExceeded, Reason::kAttachTimeout,
                       absl::StrCat("job \"", job, "\" waited in vain for slots ",
                                    absl::StrJoin(gathering.Missing(), ", "), " of a world of ",
                                    gathering.world, "; it continues with ", gathering.min_world,
                                    " of them: start them, or give a smaller min_world"),
                       At(job, slot));
}

absl::Status NoSuchSeat(const AttachCall& call, const JobSpec& spec,
                        const std::string& difference) {
  return ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kSpecMismatch,
                       absl::StrCat("slot ", call.slot, " cannot continue job \"", spec.name,
                                    "\": ", difference.empty() ? "no such seat" : difference),
                       At(spec.name, call.slot));
}

absl::Status GrownSince(const JobSpec& spec, uint32_t slot) {
  return ReasonedError(
      absl::StatusCode::kFailedPrecondition, Reason::kSpecMismatch,
      absl::StrCat("slot ", slot, " cannot continue job \"", spec.name,
                   "\": while it waited for its seat the job has grown to ", spec.group_count,
                   " groups with ", spec.tensors.size(), " tensors; attach again with all of them"),
      At(spec.name, slot));
}

absl::Status SeatHeld(const std::string& job, uint32_t slot) {
  return ReasonedError(
      absl::StatusCode::kAlreadyExists, Reason::kSlotTaken,
      absl::StrCat("slot ", slot, " of job \"", job, "\" is held by a process that is alive; ",
                   "end it first, or check the ranks"),
      At(job, slot));
}

absl::Status NoRoomFor(const std::string& job, uint32_t slot, const WorldGrant& grant) {
  ErrorFields fields = At(job, slot);
  if (!grant.refusal.ok()) {
    fields.server = FieldsOf(grant.refusal).server;
    return ReasonedError(grant.refusal.code(), ReasonOf(grant.refusal), grant.refusal.message(),
                         fields);
  }
  return ReasonedError(absl::StatusCode::kResourceExhausted, Reason::kOverBudget,
                       absl::StrCat("job \"", job, "\" has room for ", grant.granted,
                                    " trainers; raise storage.memory_budget or add servers"),
                       fields);
}

absl::Status SeatLost(const std::string& job, uint32_t slot) {
  return ReasonedError(
      absl::StatusCode::kFailedPrecondition, Reason::kWrongIncarnation,
      absl::StrCat("slot ", slot, " of job \"", job, "\" is not this process' any more"),
      At(job, slot));
}

absl::Status JustRested(const std::string& job, uint32_t slot) {
  return ReasonedError(absl::StatusCode::kUnavailable, Reason::kRecovering,
                       absl::StrCat("job \"", job, "\" has just come to rest"), At(job, slot));
}

absl::Status NoTrainerCame(const JobPlan& plan, std::chrono::nanoseconds time) {
  const double seconds = std::chrono::duration<double>(time).count();
  return ReasonedError(
      absl::StatusCode::kFailedPrecondition, Reason::kJobFinished,
      absl::StrCat("job \"", plan.spec.name, "\" rests: no trainer opened a stream ", "within ",
                   seconds, " s of taking its seat (timing.job_ttl); ",
                   "start its trainers with resume=\"auto\" to continue it"),
      {.job = plan.spec.name});
}

absl::Status NoJobToResume(const std::string& job) {
  return ReasonedError(
      absl::StatusCode::kNotFound, Reason::kUnknownJob,
      absl::StrCat("there is no job \"", job, "\" to continue; check the name, or ",
                   "use resume=\"auto\" to start it when it is not there"),
      {.job = job});
}

absl::Status TooManyJobs(const std::string& job, size_t jobs, uint32_t jobs_max) {
  return ReasonedError(absl::StatusCode::kResourceExhausted, Reason::kOverBudget,
                       absl::StrCat(jobs, " jobs are under way; limits.max_jobs is ", jobs_max,
                                    ". Wait for one to end, or raise it"),
                       {.job = job});
}

absl::Status ShareOfJobsTaken(const std::string& job, const std::string& tenant,
                              uint32_t jobs_max) {
  return ReasonedError(
      absl::StatusCode::kResourceExhausted, Reason::kOverBudget,
      absl::StrCat("tenant ", tenant, " has ", HalfOfJobs(jobs_max),
                   " jobs under way, half of limits.max_jobs (", jobs_max,
                   "), and a tenant gets no more without a number of jobs in the quota file. Wait ",
                   "for one to end, or have the operator give it a number"),
      {.job = job});
}

absl::Status NoJobOfNumber(uint64_t job) {
  return ReasonedError(absl::StatusCode::kNotFound, Reason::kUnknownJob,
                       absl::StrCat("job ", JobIdText(job), " is not known here"));
}

absl::Status TooManyPending(const std::string& job, const std::string& tenant, size_t jobs) {
  return ReasonedError(absl::StatusCode::kResourceExhausted, Reason::kOverBudget,
                       absl::StrCat(jobs, " jobs of tenant ", tenant, " wait for their trainers, ",
                                    "which is the limit of a tenant (a quarter of ",
                                    "limits.max_jobs); start their trainers, or wait"),
                       {.job = job});
}

absl::Status ServerLost(uint32_t server, const std::string& why) {
  return ReasonedError(
      absl::StatusCode::kUnavailable, Reason::kServerLost,
      absl::StrCat("server ", server, " was lost (", why, "); attach again, which waits for it"),
      {.server = static_cast<int>(server)});
}

absl::Status NotWoken(const std::string& job) {
  return ReasonedError(
      absl::StatusCode::kFailedPrecondition, Reason::kJobFinished,
      absl::StrCat("job \"", job, "\" rests again: not all of its servers could open it"),
      {.job = job});
}

absl::Status ClosedAgain(const std::string& job, uint32_t server) {
  return ReasonedError(absl::StatusCode::kUnavailable, Reason::kRecovering,
                       absl::StrCat("server ", server, " started again after it had opened job \"",
                                    job, "\"; it opens it once more"),
                       {.job = job, .server = static_cast<int>(server)});
}

absl::Status SealError(const JobPlan& plan, uint32_t self, uint32_t server,
                       const absl::Status& status) {
  if (ReasonOf(status) != Reason::kStaleEpoch) return status;
  return ReasonedError(
      absl::StatusCode::kDataLoss, Reason::kStateLost,
      absl::StrCat("job \"", plan.spec.name, "\": server ", server,
                   " is in a later epoch than the ", plan.epoch.epoch, " that its home, server ",
                   self, ", has on record (", status.message(),
                   "). The home's data directory is an older one: put back the newer, or delete "
                   "the job (ballastctl jobs delete ",
                   plan.spec.name, ")"),
      {.job = plan.spec.name, .server = static_cast<int>(self)});
}

}  // namespace ballast::server::home
