#include "server/status/status_text.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/text/names.h"
#include "common/types/enum_names.h"

namespace ballast::server {
std::string TextTable(const std::vector<Row>& rows) {
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

std::string JsonText(const std::string& text) {
  std::string out = "\"";
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += text[i];
    } else if (c < 0x20 || c == 0x7F) {
      absl::StrAppendFormat(&out, "\\u%04x", c);
    } else if (c == 0xC2 && next >= 0x80 && next < 0xA0) {  // C1, which terminals obey
      absl::StrAppendFormat(&out, "\\u%04x", next);
      ++i;
    } else {
      out += text[i];
    }
  }
  return out + "\"";
}

namespace {

std::string JobTable(const Replies& servers) {
  const std::vector<Row> rows = JobRows(servers);
  if (rows.size() == 1) return "no jobs\n";
  std::string out = TextTable(rows);
  for (const v1::StatusReply& server : servers) {
    for (const v1::JobStatus& job : server.jobs()) {
      if (!job.error().empty()) absl::StrAppend(&out, job.name(), ": ", job.error(), "\n");
    }
  }
  return out;
}

// Preceded by an empty line; "" if the table is empty.
std::string Section(const std::vector<Row>& rows) {
  return rows.size() == 1 ? "" : "\n" + TextTable(rows);
}

std::string JobJson(const v1::JobStatus& job) {
  const auto slot_json = [](std::string* out, const v1::SlotStatus& slot) {
    absl::StrAppend(out, "{\"slot\": ", slot.slot(), ", \"state\": ", JsonText(slot.state()),
                    ", \"owed_extents\": ", slot.owed_extents(),
                    ", \"first_owed\": ", slot.first_owed(), "}");
  };
  return absl::StrCat(
      "{\"name\": ", JsonText(job.name()), ", \"tenant\": ", JsonText(TenantName(job.tenant())),
      ", \"job\": \"", JobIdText(job.job()), "\", \"state\": ", JsonText(job.state()),
      ", \"round\": ", job.round(), ", \"phase\": ", JsonText(job.phase()),
      ", \"opt_step\": ", job.opt_step(), ", \"world\": ", job.world(),
      ", \"extents\": ", job.extents(), ", \"owned_extents\": ", job.owned_extents(),
      ", \"state_bytes\": ", job.state_bytes(), ", \"parameters\": ", job.parameters(),
      ", \"slots\": [", absl::StrJoin(job.slots(), ", ", slot_json),
      "], \"error\": ", JsonText(job.error()), ", \"tier\": ", JsonText(job.tier()),
      ", \"votes_missing\": [", absl::StrJoin(job.votes_missing(), ", "), "]}");
}

std::string ServerJson(const v1::StatusReply& server) {
  const auto peer_json = [](std::string* out, const v1::PeerStatus& peer) {
    absl::StrAppend(out, "{\"id\": ", peer.id(), ", \"address\": ", JsonText(peer.address()),
                    ", \"reachable\": ", peer.reachable() ? "true" : "false", "}");
  };
  const auto disk_json = [](std::string* out, const v1::DiskStatus& disk) {
    absl::StrAppend(out, "{\"directory\": ", JsonText(disk.directory()),
                    ", \"answers\": ", disk.answers() ? "true" : "false",
                    ", \"free_bytes\": ", disk.free_bytes(),
                    ", \"size_bytes\": ", disk.size_bytes(), "}");
  };
  const auto job_json = [](std::string* out, const v1::JobStatus& job) { *out += JobJson(job); };
  return absl::StrCat(
      "{\"id\": ", server.id(), ", \"version\": ", JsonText(server.version()),
      ", \"address\": ", JsonText(server.address()),
      ", \"serving\": ", server.serving() ? "true" : "false",
      ", \"state\": ", JsonText(StateOf(server)), ", \"isa\": ", JsonText(server.isa()),
      ", \"memory_used_bytes\": ", server.memory_used_bytes(),
      ", \"memory_budget_bytes\": ", server.memory_budget_bytes(),
      ", \"resident_bytes\": ", server.resident_bytes(), ", \"up_s\": ", Seconds(server.up_ns()),
      ", \"peers\": [", absl::StrJoin(server.peers(), ", ", peer_json), "], \"disks\": [",
      absl::StrJoin(server.disks(), ", ", disk_json), "], \"jobs\": [",
      absl::StrJoin(server.jobs(), ", ", job_json), "]}");
}

std::string DurabilityName(v1::Durability durability) {
  return std::string(NameOf(FromNumber<Durability>(durability).value_or(Durability::kProcess)));
}

std::string DurableJobJson(const v1::DurableJob& job) {
  return absl::StrCat(
      "{\"name\": ", JsonText(job.name()), ", \"tenant\": ", JsonText(TenantName(job.tenant())),
      ", \"job\": \"", JobIdText(job.job()), "\", \"state\": ", JsonText(job.state()),
      ", \"durability\": \"", DurabilityName(job.durability()), "\", \"world\": ", job.world(),
      ", \"epoch\": ", job.epoch(), ", \"round\": ", job.round(),
      ", \"parameters\": ", job.parameters(), ", \"tensors\": ", job.tensors(),
      ", \"groups\": ", job.groups(), ", \"servers\": [", absl::StrJoin(job.servers(), ", "),
      "], \"open_streams\": ", job.open_streams(), ", \"disk_bytes\": ", job.disk_bytes(), "}");
}

}  // namespace

std::string JobsTable(const v1::ListJobsReply& reply) {
  if (reply.jobs().empty()) return "no durable jobs\n";
  std::vector<Row> rows = {{"TENANT", "JOB", "ID", "STATE", "ATTACHED", "EPOCH", "ROUND",
                            "PARAMETERS", "TENSORS", "GROUPS", "DURABILITY", "SERVERS", "DISK"}};
  for (const v1::DurableJob& job : reply.jobs()) {
    rows.push_back({TenantName(job.tenant()), job.name(), JobIdText(job.job()), job.state(),
                    absl::StrCat(job.open_streams(), "/", job.world()), absl::StrCat(job.epoch()),
                    absl::StrCat(job.round()), absl::StrCat(job.parameters()),
                    absl::StrCat(job.tensors()), absl::StrCat(job.groups()),
                    DurabilityName(job.durability()), absl::StrJoin(job.servers(), ", "),
                    ShortBytes(job.disk_bytes())});
  }
  return TextTable(WithTenants(std::move(rows)));
}

std::string JobsJson(const v1::ListJobsReply& reply) {
  const auto job_json = [](std::string* out, const v1::DurableJob& job) {
    *out += DurableJobJson(job);
  };
  return absl::StrCat("{\"jobs\": [", absl::StrJoin(reply.jobs(), ", ", job_json), "]}\n");
}

std::string SnapshotsTable(const v1::ListSnapshotsReply& reply) {
  if (reply.snapshots().empty()) return "no snapshots\n";
  std::vector<Row> rows = {{"TENANT", "JOB", "SNAPSHOT", "ROUND", "TAKEN (UTC)", "PARAMETERS",
                            "WORLD", "SERVERS", "DISK", "ID"}};
  for (const v1::Snapshot& one : reply.snapshots()) {
    const absl::Time taken = absl::FromUnixSeconds(static_cast<int64_t>(one.created_s()));
    rows.push_back({TenantName(one.tenant()), one.job(), one.name(), absl::StrCat(one.round()),
                    absl::FormatTime("%Y-%m-%d %H:%M:%S", taken, absl::UTCTimeZone()),
                    absl::StrCat(one.parameters()), absl::StrCat(one.world()),
                    absl::StrJoin(one.servers(), ", "), ShortBytes(one.bytes()),
                    JobIdText(one.id())});
  }
  return TextTable(WithTenants(std::move(rows)));
}

std::string SnapshotsJson(const v1::ListSnapshotsReply& reply) {
  const auto one_json = [](std::string* out, const v1::Snapshot& one) {
    absl::StrAppend(out, "{\"job\": ", JsonText(one.job()),
                    ", \"tenant\": ", JsonText(TenantName(one.tenant())),
                    ", \"name\": ", JsonText(one.name()), ", \"id\": \"", JobIdText(one.id()),
                    "\", \"round\": ", one.round(), ", \"created_s\": ", one.created_s(),
                    ", \"bytes\": ", one.bytes(), ", \"parameters\": ", one.parameters(),
                    ", \"world\": ", one.world(), ", \"servers\": [",
                    absl::StrJoin(one.servers(), ", "), "]}");
  };
  return absl::StrCat("{\"snapshots\": [", absl::StrJoin(reply.snapshots(), ", ", one_json),
                      "]}\n");
}

std::string ExportJson(const v1::ExportReply& reply) {
  return absl::StrCat("{\"job\": ", JsonText(reply.job()), ", \"name\": ", JsonText(reply.name()),
                      ", \"directory\": ", JsonText(reply.directory()),
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
  return absl::StrCat(TextTable(ServerRows(servers)), Section(DiskRows(servers)), "\n",
                      JobTable(servers), Section(SlotRows(servers)), Section(RoundRows(servers)),
                      Section(WorkRows(servers)), Section(EventRows(servers)));
}

std::string StatusJson(const std::vector<v1::StatusReply>& servers) {
  const auto server_json = [](std::string* out, const v1::StatusReply& server) {
    *out += ServerJson(server);
  };
  return absl::StrCat("{\"servers\": [", absl::StrJoin(servers, ", ", server_json), "]}\n");
}

}  // namespace ballast::server
