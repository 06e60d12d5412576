// `ballastctl health`, `shards`, `trainers`, `rounds` and `top`: one view of all servers.
// Comes from: ballastctl. Goes to: cluster_view. Thread safety: the main thread.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "ballast/v1/admin.pb.h"
#include "common/text/inert.h"
#include "common/text/names.h"
#include "server/status/status_problems.h"
#include "server/status/status_text.h"
#include "tools/commands/cluster_view.h"
#include "tools/ctl/admin_call.h"
#include "tools/ctl/command.h"
#include "tools/ctl/output.h"

namespace ballast::tools {
namespace {

using server::JsonText;
using server::ProblemsOf;
using server::Row;
using server::Seconds;
using server::TextTable;

// JSON has no infinities and no NaN, which a skipped round's norm may be.
std::string JsonNumber(double value) {
  return std::isfinite(value) ? absl::StrFormat("%.9g", value) : "null";
}

std::string Ids(const std::vector<uint32_t>& ids) {
  return ids.empty() ? "-" : absl::StrJoin(ids, ", ");
}

// Says that no server that answered runs the job. With silent servers nothing is certain.
int NoSuchJob(const ClusterView& view, const std::string& job, int code) {
  if (code != 0 && view.servers.empty()) return code;
  std::cerr << "ballastctl: no running job " << Quoted(job)
            << "; ballastctl status lists those that run, jobs list those on disk\n";
  return std::max(code, kNotFound);
}

// --- health -------------------------------------------------------------------------------------

std::string HealthJson(uint32_t id, const std::string& address, bool reachable,
                       const std::vector<std::string>& problems) {
  const auto text = [](std::string* out, const std::string& problem) { *out += JsonText(problem); };
  return absl::StrCat("{\"id\": ", reachable ? absl::StrCat(id) : "null",
                      ", \"address\": ", JsonText(address),
                      ", \"healthy\": ", problems.empty() ? "true" : "false", ", \"problems\": [",
                      absl::StrJoin(problems, ", ", text), "]}");
}

int Health(const Options& options) {
  const ClusterView view = AskCluster(options, v1::StatusRequest());
  const int silent = SayWhoIsSilent(view, options);
  std::vector<Row> rows = {{"SERVER", "ADDRESS", "HEALTH", "WHY"}};
  std::vector<std::string> servers;
  bool healthy = view.silent.empty();
  for (const v1::StatusReply& server : view.servers) {
    const std::vector<std::string> problems = ProblemsOf(server);
    healthy = healthy && problems.empty();
    rows.push_back({absl::StrCat(server.id()), server.address(),
                    problems.empty() ? "healthy" : "unhealthy",
                    problems.empty() ? "-" : absl::StrJoin(problems, "; ")});
    servers.push_back(HealthJson(server.id(), server.address(), true, problems));
  }
  for (const ClusterView::Silent& one : view.silent) {
    const bool refused = ExitCode(one.status) == kNotPermitted;
    const std::string why = refused ? "this identity may not ask it" : "it does not answer";
    rows.push_back({"?", one.endpoint, refused ? "not permitted" : "unreachable", why});
    servers.push_back(HealthJson(0, one.endpoint, false, {why}));
  }
  const int printed = Print(options, TextTable(rows),
                            absl::StrCat("{\"healthy\": ", healthy ? "true" : "false",
                                         ", \"servers\": [", absl::StrJoin(servers, ", "), "]}\n"));
  if (printed != 0) return printed;
  if (view.servers.empty()) return silent;
  return healthy ? 0 : kUnhealthy;
}

// --- shards -------------------------------------------------------------------------------------

int Shards(const Options& options) {
  const std::string wanted = options.words.empty() ? "" : options.words[0];
  const ClusterView view = AskCluster(options, v1::StatusRequest());
  const int code = SayWhoIsSilent(view, options);
  std::vector<Row> rows = {{"JOB", "SERVER", "ADDRESS", "EXTENTS", "BYTES", "TIER"}};
  std::vector<std::string> shards;
  for (const v1::StatusReply& server : view.servers) {
    for (const v1::JobStatus& job : server.jobs()) {
      if (!wanted.empty() && job.name() != wanted) continue;
      rows.push_back({job.name(), absl::StrCat(server.id()), server.address(),
                      absl::StrCat(job.owned_extents(), "/", job.extents()),
                      server::ShortBytes(job.state_bytes()), job.tier()});
      shards.push_back(absl::StrCat(
          "{\"job\": ", JsonText(job.name()), ", \"server\": ", server.id(),
          ", \"address\": ", JsonText(server.address()),
          ", \"owned_extents\": ", job.owned_extents(), ", \"extents\": ", job.extents(),
          ", \"bytes\": ", job.state_bytes(), ", \"tier\": ", JsonText(job.tier()), "}"));
    }
  }
  if (!wanted.empty() && shards.empty()) return NoSuchJob(view, wanted, code);
  if (view.servers.empty()) return code;
  const int printed = Print(options, shards.empty() ? "no jobs\n" : TextTable(rows),
                            absl::StrCat("{\"shards\": [", absl::StrJoin(shards, ", "), "]}\n"));
  return std::max(printed, code);
}

// --- trainers -----------------------------------------------------------------------------------

int Trainers(const Options& options) {
  const std::string& job = options.words[0];
  const ClusterView view = AskCluster(options, v1::StatusRequest());
  const int code = SayWhoIsSilent(view, options);
  const std::vector<TrainerView> trainers = TrainersOf(view, job);
  if (trainers.empty()) return NoSuchJob(view, job, code);
  std::vector<Row> rows = {{"SLOT", "STATE", "OWED EXTENTS", "TO SERVERS"}};
  std::vector<std::string> values;
  for (const TrainerView& trainer : trainers) {
    rows.push_back({absl::StrCat(trainer.slot), trainer.state, absl::StrCat(trainer.owed_extents),
                    Ids(trainer.owed_to)});
    values.push_back(absl::StrCat("{\"slot\": ", trainer.slot,
                                  ", \"state\": ", JsonText(trainer.state),
                                  ", \"owed_extents\": ", trainer.owed_extents, ", \"owed_to\": [",
                                  absl::StrJoin(trainer.owed_to, ", "), "]}"));
  }
  const int printed = Print(options, TextTable(rows),
                            absl::StrCat("{\"job\": ", JsonText(job), ", \"trainers\": [",
                                         absl::StrJoin(values, ", "), "]}\n"));
  return std::max(printed, code);
}

// --- rounds -------------------------------------------------------------------------------------

struct SeenRound {
  uint32_t server = 0;
  v1::FinishedRound round;
};

// Newest last, servers side by side.
std::vector<SeenRound> RoundsOf(const ClusterView& view, const std::string& job, bool* known) {
  std::vector<SeenRound> rounds;
  for (const v1::StatusReply& server : view.servers) {
    for (const v1::JobStatus& share : server.jobs()) {
      if (share.name() != job) continue;
      *known = true;
      for (const v1::FinishedRound& round : share.rounds()) rounds.push_back({server.id(), round});
    }
  }
  std::stable_sort(rounds.begin(), rounds.end(), [](const SeenRound& a, const SeenRound& b) {
    return a.round.round() < b.round.round();
  });
  return rounds;
}

Row RoundRow(const SeenRound& seen) {
  Row row = {absl::StrCat(seen.round.round()), absl::StrCat(seen.server), seen.round.end(),
             absl::StrCat(server::SecondsText(Seconds(seen.round.age_ns())), " ago")};
  const Row cells = server::RoundCells(seen.round);
  row.insert(row.end(), cells.begin(), cells.end());
  return row;
}

std::string RoundJson(const SeenRound& seen) {
  const v1::FinishedRound& round = seen.round;
  return absl::StrCat(
      "{\"round\": ", round.round(), ", \"server\": ", seen.server,
      ", \"end\": ", JsonText(round.end()), ", \"age_s\": ", JsonNumber(Seconds(round.age_ns())),
      ", \"collect_s\": ", JsonNumber(Seconds(round.collect_ns())),
      ", \"vote_s\": ", JsonNumber(Seconds(round.vote_ns())),
      ", \"step_s\": ", JsonNumber(Seconds(round.step_ns())),
      ", \"pushed_bytes\": ", round.pushed_bytes(),
      ", \"grad_norm\": ", JsonNumber(round.grad_norm()),
      ", \"last_slot\": ", round.last_slot() < 0 ? "null" : absl::StrCat(round.last_slot()), "}");
}

int Rounds(const Options& options) {
  const std::string& job = options.words[0];
  v1::StatusRequest request;
  request.set_rounds(options.last);
  const ClusterView view = AskCluster(options, request);
  const int code = SayWhoIsSilent(view, options);
  bool known = false;
  const std::vector<SeenRound> rounds = RoundsOf(view, job, &known);
  if (!known) return NoSuchJob(view, job, code);
  std::vector<Row> rows = {
      {"ROUND", "SERVER", "END", "WHEN", "COLLECT", "VOTE", "STEP", "PUSHED", "GRAD NORM", "LAST"}};
  std::vector<std::string> values;
  for (const SeenRound& seen : rounds) {
    rows.push_back(RoundRow(seen));
    values.push_back(RoundJson(seen));
  }
  const int printed = Print(options, rounds.empty() ? "no round has ended\n" : TextTable(rows),
                            absl::StrCat("{\"job\": ", JsonText(job), ", \"rounds\": [",
                                         absl::StrJoin(values, ", "), "]}\n"));
  return std::max(printed, code);
}

// --- top ----------------------------------------------------------------------------------------

// Which slots the job waits for, at one server.
std::vector<uint32_t> Owing(const v1::JobStatus& job) {
  std::vector<uint32_t> slots;
  for (const v1::SlotStatus& slot : job.slots()) {
    if (slot.owed_extents() > 0) slots.push_back(slot.slot());
  }
  return slots;
}

int Top(const Options& options) {
  v1::StatusRequest request;
  request.set_rounds(32);
  const ClusterView view = AskCluster(options, request);
  const int code = SayWhoIsSilent(view, options);
  if (view.servers.empty()) return code;
  std::vector<Row> rows = {{"JOB", "SERVER", "STATE", "PHASE", "ROUND", "ROUNDS/S", "COLLECT",
                            "VOTE", "STEP", "PUSHED", "WAITS FOR SLOTS"}};
  std::vector<std::string> values;
  for (const v1::StatusReply& server : view.servers) {
    for (const v1::JobStatus& job : server.jobs()) {
      const Pace pace = PaceOf(job);
      const std::vector<uint32_t> owing = Owing(job);
      rows.push_back({job.name(), absl::StrCat(server.id()), job.state(), job.phase(),
                      absl::StrCat(job.round()), absl::StrFormat("%.2f", pace.rounds_per_s),
                      server::SecondsText(pace.collect_s), server::SecondsText(pace.vote_s),
                      server::SecondsText(pace.step_s),
                      absl::StrFormat("%.1f MB/s", pace.pushed_bytes_per_s / 1e6), Ids(owing)});
      values.push_back(absl::StrCat(
          "{\"job\": ", JsonText(job.name()), ", \"server\": ", server.id(),
          ", \"state\": ", JsonText(job.state()), ", \"phase\": ", JsonText(job.phase()),
          ", \"round\": ", job.round(), ", \"rounds_per_s\": ", JsonNumber(pace.rounds_per_s),
          ", \"collect_s\": ", JsonNumber(pace.collect_s),
          ", \"vote_s\": ", JsonNumber(pace.vote_s), ", \"step_s\": ", JsonNumber(pace.step_s),
          ", \"pushed_bytes_per_s\": ", JsonNumber(pace.pushed_bytes_per_s), ", \"waits_for\": [",
          absl::StrJoin(owing, ", "), "]}"));
    }
  }
  const int printed = Print(options, values.empty() ? "no jobs\n" : TextTable(rows),
                            absl::StrCat("{\"jobs\": [", absl::StrJoin(values, ", "), "]}\n"));
  return std::max(printed, code);
}

}  // namespace

std::vector<Command> ClusterCommands() {
  return {
      {.name = "health",
       .help = "what is wrong, server by server; exit code 6 where something is",
       .run = Health,
       .flags = {"--watch", "--every"}},
      {.name = "shards",
       .words = "[JOB]",
       .help = "which server has how much of a job's state, and where",
       .run = Shards,
       .flags = {"--watch", "--every"}},
      {.name = "trainers",
       .words = "JOB",
       .help = "its trainers, and what each owes of the open round",
       .run = Trainers,
       .flags = {"--watch", "--every"}},
      {.name = "rounds",
       .words = "JOB",
       .help = "its last rounds: phases, bytes, norm, and which trainer was last",
       .run = Rounds,
       .flags = {"--last", "--watch", "--every"}},
      {.name = "top",
       .help = "the pace of all jobs, redrawn on a terminal",
       .run = Top,
       .flags = {"--watch", "--every"},
       .live = true},
  };
}

}  // namespace ballast::tools
