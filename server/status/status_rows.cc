#include "server/status/status_rows.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/text/qualified_name.h"
#include "server/status/status_problems.h"

namespace ballast::server {
std::string ShortBytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < 5; ++unit) value /= 1024;
  return absl::StrFormat(unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
}

std::string StateOf(const v1::StatusReply& server) {
  if (server.serving()) return "serving";
  // Earlier servers do not report it.
  return server.instead().empty() ? "not serving" : server.instead();
}

std::string SecondsText(double seconds) {
  if (seconds < 1e-3) return absl::StrFormat("%.0f us", seconds * 1e6);
  if (seconds < 1) return absl::StrFormat("%.1f ms", seconds * 1e3);
  return absl::StrFormat("%.1f s", seconds);
}

double Seconds(uint64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

Row RoundCells(const v1::FinishedRound& round) {
  return {SecondsText(Seconds(round.collect_ns())),
          SecondsText(Seconds(round.vote_ns())),
          SecondsText(Seconds(round.step_ns())),
          ShortBytes(round.pushed_bytes()),
          absl::StrFormat("%.4g", round.grad_norm()),
          round.last_slot() < 0 ? "-" : absl::StrCat("slot ", round.last_slot())};
}

namespace {

std::string BudgetText(const v1::StatusReply& server) {
  const bool over = server.memory_used_bytes() > server.memory_budget_bytes();
  return ShortBytes(server.memory_budget_bytes()) + (over ? " (over)" : "");
}

// Earlier servers do not report it.
std::string OrDash(uint64_t bytes) { return bytes == 0 ? "-" : ShortBytes(bytes); }

}  // namespace

std::string TimeText(double seconds) {
  const auto whole = static_cast<uint64_t>(seconds);
  if (whole < 120) return absl::StrCat(whole, " s");
  if (whole < 2 * 3600) return absl::StrCat(whole / 60, " min");
  if (whole < 48 * 3600) return absl::StrCat(whole / 3600, " h ", whole / 60 % 60, " min");
  return absl::StrCat(whole / 86400, " days");
}

std::string TenantName(const std::string& tenant) {
  return tenant.empty() ? kDefaultTenant : tenant;
}

std::vector<Row> WithTenants(std::vector<Row> rows) {
  const bool shown = std::any_of(rows.begin() + 1, rows.end(),
                                 [](const Row& row) { return row.front() != kDefaultTenant; });
  if (shown) return rows;
  for (Row& row : rows) row.erase(row.begin());
  return rows;
}

std::vector<Row> ServerRows(const Replies& servers) {
  std::vector<Row> rows = {{"SERVER", "ADDRESS", "STATE", "UP", "VERSION", "ISA", "RESIDENT",
                            "PLANNED", "BUDGET", "PEERS"}};
  for (const v1::StatusReply& server : servers) {
    std::vector<std::string> peers;
    for (const v1::PeerStatus& peer : server.peers()) {
      peers.push_back(absl::StrCat(peer.id(), peer.reachable() ? "" : " unreachable"));
    }
    rows.push_back({absl::StrCat(server.id()), server.address(), StateOf(server),
                    server.up_ns() == 0 ? "-" : TimeText(Seconds(server.up_ns())), server.version(),
                    server.isa(), OrDash(server.resident_bytes()),
                    ShortBytes(server.memory_used_bytes()), BudgetText(server),
                    peers.empty() ? "-" : absl::StrJoin(peers, ", ")});
  }
  return rows;
}

std::vector<Row> DiskRows(const Replies& servers) {
  std::vector<Row> rows = {{"DISK", "SERVER", "STATE", "FREE", "OF", "USED"}};
  for (const v1::StatusReply& server : servers) {
    for (const v1::DiskStatus& disk : server.disks()) {
      const double size = static_cast<double>(disk.size_bytes());
      const double used = size == 0 ? 0 : 1 - static_cast<double>(disk.free_bytes()) / size;
      rows.push_back({disk.directory(), absl::StrCat(server.id()),
                      disk.answers() ? "answers" : "silent", ShortBytes(disk.free_bytes()),
                      ShortBytes(disk.size_bytes()), absl::StrFormat("%.0f %%", 100 * used)});
    }
  }
  return rows;
}

std::vector<Row> JobRows(const Replies& servers) {
  std::vector<Row> rows = {{"TENANT", "JOB", "SERVER", "STATE", "WAITS FOR", "ROUND", "PHASE",
                            "STEPS", "WORLD", "PARAMETERS", "EXTENTS", "STATE BYTES", "TIER"}};
  for (const v1::StatusReply& server : servers) {
    for (const v1::JobStatus& job : server.jobs()) {
      const std::string state = Stalls(server, job) ? "waiting" : job.state();
      const std::string waits = WaitsFor(server, job);
      rows.push_back({TenantName(job.tenant()), job.name(), absl::StrCat(server.id()), state,
                      waits.empty() ? "-" : waits, absl::StrCat(job.round()), job.phase(),
                      absl::StrCat(job.opt_step()), absl::StrCat(job.world()),
                      absl::StrCat(job.parameters()),
                      absl::StrCat(job.owned_extents(), "/", job.extents()),
                      ShortBytes(job.state_bytes()), job.tier().empty() ? "-" : job.tier()});
    }
  }
  return WithTenants(std::move(rows));
}

std::vector<Row> SlotRows(const Replies& servers) {
  std::vector<Row> rows = {
      {"TENANT", "JOB", "SERVER", "ROUND", "SLOT", "STATE", "OWED", "FIRST OWED"}};
  for (const v1::StatusReply& server : servers) {
    for (const v1::JobStatus& job : server.jobs()) {
      for (const v1::SlotStatus& slot : job.slots()) {
        const bool owes = slot.owed_extents() > 0;
        rows.push_back({TenantName(job.tenant()), job.name(), absl::StrCat(server.id()),
                        absl::StrCat(job.round()), absl::StrCat(slot.slot()), slot.state(),
                        absl::StrCat(slot.owed_extents()),
                        owes ? absl::StrCat("extent ", slot.first_owed()) : "-"});
      }
    }
  }
  return WithTenants(std::move(rows));
}

std::vector<Row> RoundRows(const Replies& servers) {
  std::vector<Row> rows = {{"TENANT", "JOB", "SERVER", "ROUND", "END", "AGE", "COLLECT", "VOTE",
                            "STEP", "PUSHED", "GRAD NORM", "LAST"}};
  for (const v1::StatusReply& server : servers) {
    for (const v1::JobStatus& job : server.jobs()) {
      for (int i = job.rounds_size() - 1; i >= 0; --i) {
        const v1::FinishedRound& round = job.rounds(i);
        rows.push_back({TenantName(job.tenant()), job.name(), absl::StrCat(server.id()),
                        absl::StrCat(round.round()), round.end(),
                        SecondsText(Seconds(round.age_ns()))});
        const Row cells = RoundCells(round);
        rows.back().insert(rows.back().end(), cells.begin(), cells.end());
      }
    }
  }
  return WithTenants(std::move(rows));
}

std::vector<Row> WorkRows(const Replies& servers) {
  std::vector<Row> rows = {{"WORK", "SERVER", "NAME", "DONE", "OF"}};
  for (const v1::StatusReply& server : servers) {
    for (const v1::Work& work : server.works()) {
      rows.push_back({work.kind(), absl::StrCat(server.id()), work.name(),
                      ShortBytes(work.done_bytes()), ShortBytes(work.total_bytes())});
    }
  }
  return rows;
}

std::vector<Row> EventRows(const Replies& servers) {
  std::vector<Row> rows = {{"TIME (UTC)", "SERVER", "SEVERITY", "EVENT"}};
  for (const v1::StatusReply& server : servers) {
    for (int i = server.events_size() - 1; i >= 0; --i) {
      const v1::Event& event = server.events(i);
      rows.push_back({absl::FormatTime("%Y-%m-%d %H:%M:%E3S", absl::FromUnixMicros(event.time_us()),
                                       absl::UTCTimeZone()),
                      absl::StrCat(server.id()), event.severity(), event.text()});
    }
  }
  return rows;
}

}  // namespace ballast::server
