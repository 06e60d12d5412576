// `ballastctl snapshot`: the state that a round of a job begins with, kept under a name.
// Comes from: ballastctl. Goes to: the jobs' home. Thread safety: the main thread.
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ballast/v1/admin.pb.h"
#include "common/text/inert.h"
#include "common/text/names.h"
#include "proto/convert/methods.h"
#include "server/status/status_text.h"
#include "tools/commands/work_watch.h"
#include "tools/ctl/admin_call.h"
#include "tools/ctl/command.h"
#include "tools/ctl/output.h"

namespace ballast::tools {
namespace {

// `done`: a line before the table.
int ShowSnapshots(const Options& options, const v1::ListSnapshotsReply& shown,
                  const std::string& done = "") {
  return Print(options, done + server::SnapshotsTable(shown), server::SnapshotsJson(shown));
}

// `snapshot list` and, with a name, `snapshot show`.
int ListSnapshots(const Options& options, const std::string& job, const std::string& name) {
  std::string endpoint = FirstThatServes(options);
  v1::ListSnapshotsRequest request;
  request.set_job(job);
  request.set_tenant(options.tenant);
  const auto reply =
      AskHome<v1::ListSnapshotsReply>(&endpoint, method::kAdminListSnapshots, request, kTimeoutS);
  if (!reply.ok()) return Failed(endpoint, options, reply.status());
  v1::ListSnapshotsReply shown;
  for (const v1::Snapshot& one : reply->snapshots()) {
    if (name.empty() || one.name() == name) *shown.add_snapshots() = one;
  }
  if (name.empty() || !shown.snapshots().empty()) return ShowSnapshots(options, shown);
  std::cerr << "ballastctl: job " << Quoted(job) << " has no snapshot " << Quoted(name) << " at "
            << endpoint << "\n";
  return kNotFound;
}

// create, verify and delete.
int ChangeSnapshot(const Options& options, const char* method, const char* done) {
  std::string endpoint = FirstThatServes(options);
  v1::SnapshotRequest request;
  request.set_job(options.words[0]);
  request.set_name(options.words[1]);
  request.set_keep(options.keep);
  request.set_tenant(options.tenant);
  const auto reply = [&] {
    const WorkWatch watch(endpoint, [&](const v1::Work& work) {
      return work.kind() == "snapshot" && work.name() == request.job();
    });
    return AskHome<v1::SnapshotReply>(&endpoint, method, request, kWholeStateTimeoutS);
  }();
  if (!reply.ok()) return Failed(endpoint, options, reply.status());
  v1::ListSnapshotsReply shown;
  *shown.add_snapshots() = reply->snapshot();
  return ShowSnapshots(options, shown,
                       absl::StrCat(done, " ", request.job(), " ", request.name(), "\n"));
}

// `share`: fork.
int RestoreSnapshot(const Options& options, bool share) {
  std::string endpoint = FirstThatServes(options);
  v1::RestoreSnapshotRequest request;
  request.set_job(options.words[0]);
  request.set_name(options.words[1]);
  request.set_as(options.as);
  request.set_world(options.world);
  request.set_share(share);
  request.set_tenant(options.tenant);
  const auto reply = [&] {
    const WorkWatch watch(endpoint, [&](const v1::Work& work) {
      return work.kind() == "restore" && work.name() == request.as();
    });
    return AskHome<v1::RestoreSnapshotReply>(&endpoint, method::kAdminRestoreSnapshot, request,
                                             kWholeStateTimeoutS);
  }();
  if (!reply.ok()) return Failed(endpoint, options, reply.status());
  if (!reply->copied().empty()) std::cerr << "ballastctl: " << Inert(reply->copied()) << "\n";
  v1::ListJobsReply shown;
  *shown.add_jobs() = reply->job();
  return Print(options, server::JobsTable(shown), server::JobsJson(shown));
}

// A change whose method and word for the result are known when it is compiled.
int Create(const Options& options) {
  return ChangeSnapshot(options, method::kAdminCreateSnapshot, "taken");
}
int Verify(const Options& options) {
  return ChangeSnapshot(options, method::kAdminVerifySnapshot, "whole");
}
int Delete(const Options& options) {
  return ChangeSnapshot(options, method::kAdminDeleteSnapshot, "deleted");
}
int List(const Options& options) {
  return ListSnapshots(options, options.words.empty() ? "" : options.words[0], "");
}
int Show(const Options& options) {
  return ListSnapshots(options, options.words[0], options.words[1]);
}
int Restore(const Options& options) { return RestoreSnapshot(options, false); }
int Fork(const Options& options) { return RestoreSnapshot(options, true); }

std::vector<Command> SnapshotKeeping() {
  return {
      {.name = "snapshot create",
       .words = "JOB NAME",
       .help = "keep the state that a round of a job begins with",
       .run = Create,
       .flags = {"--tenant", "--keep"}},
      {.name = "snapshot list",
       .words = "[JOB]",
       .help = "snapshots of one job, or of all",
       .run = List,
       .flags = {"--tenant", "--watch", "--every"}},
      {.name = "snapshot show",
       .words = "JOB NAME",
       .help = "one snapshot",
       .run = Show,
       .flags = {"--tenant"}},
      {.name = "snapshot verify",
       .words = "JOB NAME",
       .help = "read all of it and compare every checksum",
       .run = Verify,
       .flags = {"--tenant"}},
      {.name = "snapshot delete",
       .words = "JOB NAME",
       .help = "remove it; jobs that share its files keep theirs",
       .run = Delete,
       .flags = {"--tenant"}},
  };
}

// The commands that use a snapshot.
std::vector<Command> SnapshotUses() {
  return {
      {.name = "snapshot restore",
       .words = "JOB NAME",
       .help = "make a job NEW of it, which rests until trainers resume it",
       .run = Restore,
       .flags = {"--tenant", "--as", "--world"},
       .needs = "--as"},
      {.name = "snapshot fork",
       .words = "JOB NAME",
       .help = "restore without a copy: NEW shares the snapshot's files",
       .run = Fork,
       .flags = {"--tenant", "--as", "--world"},
       .needs = "--as"},
  };
}

}  // namespace

std::vector<Command> SnapshotCommands() {
  std::vector<Command> commands = SnapshotKeeping();
  for (Command& use : SnapshotUses()) commands.push_back(std::move(use));
  return commands;
}

}  // namespace ballast::tools
