#include "server/rpc/status_text.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/base/names.h"

namespace ballast::server {
namespace {

using Row = std::vector<std::string>;

// Columns as wide as their widest cell; `rows` begins with the headings.
std::string Table(const std::vector<Row>& rows) {
  std::vector<size_t> width(rows.front().size());
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  }
  std::string out;
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size()) line.append(width[i] - row[i].size() + 2, ' ');
    }
    out += line + "\n";
  }
  return out;
}

// For reading, not for reading back: three digits are enough.
std::string Bytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < 5; ++unit) value /= 1024;
  return absl::StrFormat(unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
}

std::string ServerTable(const std::vector<v1::StatusReply>& servers) {
  std::vector<Row> rows = {
      {"SERVER", "ADDRESS", "STATE", "VERSION", "ISA", "MEMORY", "BUDGET", "PEERS"}};
  for (const v1::StatusReply& server : servers) {
    std::vector<std::string> peers;
    for (const v1::PeerStatus& peer : server.peers()) {
      peers.push_back(absl::StrCat(peer.id(), peer.reachable() ? "" : " unreachable"));
    }
    rows.push_back({absl::StrCat(server.id()), server.address(),
                    server.serving() ? "serving" : "waiting for peers", server.version(),
                    server.isa(), Bytes(server.memory_used_bytes()),
                    Bytes(server.memory_budget_bytes()),
                    peers.empty() ? "-" : absl::StrJoin(peers, ", ")});
  }
  return Table(rows);
}

std::string JobTable(const std::vector<v1::StatusReply>& servers) {
  std::vector<Row> rows = {{"JOB", "SERVER", "STATE", "ROUND", "PHASE", "STEPS", "WORLD",
                            "PARAMETERS", "EXTENTS", "STATE BYTES", "VOTES MISSING"}};
  for (const v1::StatusReply& server : servers) {
    for (const v1::JobStatus& job : server.jobs()) {
      rows.push_back(
          {job.name(), absl::StrCat(server.id()), job.state(), absl::StrCat(job.round()),
           job.phase(), absl::StrCat(job.opt_step()), absl::StrCat(job.world()),
           absl::StrCat(job.parameters()), absl::StrCat(job.owned_extents(), "/", job.extents()),
           Bytes(job.state_bytes()),
           job.votes_missing().empty() ? "-" : absl::StrJoin(job.votes_missing(), ", ")});
    }
  }
  if (rows.size() == 1) return "no jobs\n";
  std::string out = Table(rows);
  for (const v1::StatusReply& server : servers) {
    for (const v1::JobStatus& job : server.jobs()) {
      if (!job.error().empty()) absl::StrAppend(&out, job.name(), ": ", job.error(), "\n");
    }
  }
  return out;
}

std::string SlotTable(const std::vector<v1::StatusReply>& servers) {
  std::vector<Row> rows = {{"JOB", "SERVER", "ROUND", "SLOT", "STATE", "OWED", "FIRST OWED"}};
  for (const v1::StatusReply& server : servers) {
    for (const v1::JobStatus& job : server.jobs()) {
      for (const v1::SlotStatus& slot : job.slots()) {
        const bool owes = slot.owed_extents() > 0;
        rows.push_back({job.name(), absl::StrCat(server.id()), absl::StrCat(job.round()),
                        absl::StrCat(slot.slot()), slot.state(), absl::StrCat(slot.owed_extents()),
                        owes ? absl::StrCat("extent ", slot.first_owed()) : "-"});
      }
    }
  }
  return rows.size() == 1 ? "" : "\n" + Table(rows);
}

// Names of servers and jobs come from outside.
std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppendFormat(&out, "\\u%04x", c);
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string JobJson(const v1::JobStatus& job) {
  const auto slot_json = [](std::string* out, const v1::SlotStatus& slot) {
    absl::StrAppend(out, "{\"slot\": ", slot.slot(), ", \"state\": ", Quoted(slot.state()),
                    ", \"owed_extents\": ", slot.owed_extents(),
                    ", \"first_owed\": ", slot.first_owed(), "}");
  };
  return absl::StrCat(
      "{\"name\": ", Quoted(job.name()), ", \"job\": \"", JobIdText(job.job()),
      "\", \"state\": ", Quoted(job.state()), ", \"round\": ", job.round(),
      ", \"phase\": ", Quoted(job.phase()), ", \"opt_step\": ", job.opt_step(),
      ", \"world\": ", job.world(), ", \"extents\": ", job.extents(),
      ", \"owned_extents\": ", job.owned_extents(), ", \"state_bytes\": ", job.state_bytes(),
      ", \"parameters\": ", job.parameters(), ", \"slots\": [",
      absl::StrJoin(job.slots(), ", ", slot_json), "], \"error\": ", Quoted(job.error()),
      ", \"votes_missing\": [", absl::StrJoin(job.votes_missing(), ", "), "]}");
}

std::string ServerJson(const v1::StatusReply& server) {
  const auto peer_json = [](std::string* out, const v1::PeerStatus& peer) {
    absl::StrAppend(out, "{\"id\": ", peer.id(), ", \"address\": ", Quoted(peer.address()),
                    ", \"reachable\": ", peer.reachable() ? "true" : "false", "}");
  };
  const auto job_json = [](std::string* out, const v1::JobStatus& job) { *out += JobJson(job); };
  return absl::StrCat("{\"id\": ", server.id(), ", \"version\": ", Quoted(server.version()),
                      ", \"address\": ", Quoted(server.address()),
                      ", \"serving\": ", server.serving() ? "true" : "false",
                      ", \"isa\": ", Quoted(server.isa()),
                      ", \"memory_used_bytes\": ", server.memory_used_bytes(),
                      ", \"memory_budget_bytes\": ", server.memory_budget_bytes(), ", \"peers\": [",
                      absl::StrJoin(server.peers(), ", ", peer_json), "], \"jobs\": [",
                      absl::StrJoin(server.jobs(), ", ", job_json), "]}");
}

const char* DurabilityName(v1::Durability durability) {
  return durability == v1::DURABILITY_POWER ? "power" : "process";
}

std::string DurableJobJson(const v1::DurableJob& job) {
  return absl::StrCat(
      "{\"name\": ", Quoted(job.name()), ", \"job\": \"", JobIdText(job.job()),
      "\", \"state\": ", Quoted(job.state()), ", \"durability\": \"",
      DurabilityName(job.durability()), "\", \"world\": ", job.world(),
      ", \"epoch\": ", job.epoch(), ", \"round\": ", job.round(),
      ", \"parameters\": ", job.parameters(), ", \"tensors\": ", job.tensors(),
      ", \"groups\": ", job.groups(), ", \"servers\": [", absl::StrJoin(job.servers(), ", "),
      "], \"open_streams\": ", job.open_streams(), ", \"disk_bytes\": ", job.disk_bytes(), "}");
}

}  // namespace

std::string JobsTable(const v1::ListJobsReply& reply) {
  if (reply.jobs().empty()) return "no durable jobs\n";
  std::vector<Row> rows = {{"JOB", "ID", "STATE", "ATTACHED", "EPOCH", "ROUND", "PARAMETERS",
                            "TENSORS", "GROUPS", "DURABILITY", "SERVERS", "DISK"}};
  for (const v1::DurableJob& job : reply.jobs()) {
    rows.push_back({job.name(), JobIdText(job.job()), job.state(),
                    absl::StrCat(job.open_streams(), "/", job.world()), absl::StrCat(job.epoch()),
                    absl::StrCat(job.round()), absl::StrCat(job.parameters()),
                    absl::StrCat(job.tensors()), absl::StrCat(job.groups()),
                    DurabilityName(job.durability()), absl::StrJoin(job.servers(), ", "),
                    Bytes(job.disk_bytes())});
  }
  return Table(rows);
}

std::string JobsJson(const v1::ListJobsReply& reply) {
  const auto job_json = [](std::string* out, const v1::DurableJob& job) {
    *out += DurableJobJson(job);
  };
  return absl::StrCat("{\"jobs\": [", absl::StrJoin(reply.jobs(), ", ", job_json), "]}\n");
}

std::string SnapshotsTable(const v1::ListSnapshotsReply& reply) {
  if (reply.snapshots().empty()) return "no snapshots\n";
  std::vector<Row> rows = {
      {"JOB", "SNAPSHOT", "ROUND", "TAKEN (UTC)", "PARAMETERS", "WORLD", "SERVERS", "DISK", "ID"}};
  for (const v1::Snapshot& one : reply.snapshots()) {
    const absl::Time taken = absl::FromUnixSeconds(static_cast<int64_t>(one.created_s()));
    rows.push_back({one.job(), one.name(), absl::StrCat(one.round()),
                    absl::FormatTime("%Y-%m-%d %H:%M:%S", taken, absl::UTCTimeZone()),
                    absl::StrCat(one.parameters()), absl::StrCat(one.world()),
                    absl::StrJoin(one.servers(), ", "), Bytes(one.bytes()), JobIdText(one.id())});
  }
  return Table(rows);
}

std::string SnapshotsJson(const v1::ListSnapshotsReply& reply) {
  const auto one_json = [](std::string* out, const v1::Snapshot& one) {
    absl::StrAppend(out, "{\"job\": ", Quoted(one.job()), ", \"name\": ", Quoted(one.name()),
                    ", \"id\": \"", JobIdText(one.id()), "\", \"round\": ", one.round(),
                    ", \"created_s\": ", one.created_s(), ", \"bytes\": ", one.bytes(),
                    ", \"parameters\": ", one.parameters(), ", \"world\": ", one.world(),
                    ", \"servers\": [", absl::StrJoin(one.servers(), ", "), "]}");
  };
  return absl::StrCat("{\"snapshots\": [", absl::StrJoin(reply.snapshots(), ", ", one_json),
                      "]}\n");
}

std::string ExportJson(const v1::ExportReply& reply) {
  return absl::StrCat("{\"job\": ", Quoted(reply.job()), ", \"name\": ", Quoted(reply.name()),
                      ", \"directory\": ", Quoted(reply.directory()),
                      ", \"round\": ", reply.round(), ", \"bytes\": ", reply.bytes(),
                      ", \"files\": ", reply.files(), ", \"tensors\": ", reply.tensors(),
                      ", \"parameters\": ", reply.parameters(),
                      ", \"state\": ", reply.state() ? "true" : "false",
                      ", \"seconds\": ", static_cast<double>(reply.milliseconds()) / 1000, "}\n");
}

std::string ImportJson(const v1::ImportReply& reply) {
  return absl::StrCat("{\"jobs\": [", DurableJobJson(reply.job()), "], \"bytes\": ", reply.bytes(),
                      ", \"state\": ", reply.state() ? "true" : "false",
                      ", \"seconds\": ", static_cast<double>(reply.milliseconds()) / 1000, "}\n");
}

std::string StatusTable(const std::vector<v1::StatusReply>& servers) {
  return ServerTable(servers) + "\n" + JobTable(servers) + SlotTable(servers);
}

std::string StatusJson(const std::vector<v1::StatusReply>& servers) {
  const auto server_json = [](std::string* out, const v1::StatusReply& server) {
    *out += ServerJson(server);
  };
  return absl::StrCat("{\"servers\": [", absl::StrJoin(servers, ", ", server_json), "]}\n");
}

}  // namespace ballast::server
