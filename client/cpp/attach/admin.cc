// The calls of an operator. See ballast/admin.h.
#include "ballast/admin.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ballast/v1/admin.pb.h"
#include "client/cpp/attach/connecting.h"
#include "client/cpp/job/arguments.h"
#include "client/cpp/session/retry.h"
#include "client/cpp/transport/unary_call.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "proto/convert/channel_factory.h"
#include "proto/convert/methods.h"

namespace ballast::client {
namespace {

using std::chrono::milliseconds;
using SteadyClock = std::chrono::steady_clock;

constexpr milliseconds kPause{200};
// How long a server may take to answer.
constexpr std::chrono::seconds kListTimeout{5};
constexpr std::chrono::seconds kDeleteTimeout{60};  // Large files take a while to go.
constexpr std::chrono::hours kWholeJobTimeout{24};  // All of a job is read or written.

struct Asked {
  const char* method;
  const google::protobuf::MessageLite& request;
  milliseconds timeout;  // of one try
  google::protobuf::MessageLite* reply;
};

absl::Status Poll(const AdminOptions& options) {
  if (!options.should_stop || !options.should_stop()) return absl::OkStatus();
  return ReasonedError(absl::StatusCode::kCancelled, Reason::kClosed,
                       "the call was stopped by the caller");
}

// Worth another try: the server is away, or has not answered in time.
bool IsTransient(const absl::Status& status) {
  const bool silent = status.code() == absl::StatusCode::kDeadlineExceeded &&
                      ReasonOf(status) == Reason::kUnspecified;
  return silent || IsAway(status);
}

// Asks the server at `address`, then the jobs' home if it is another server.
absl::Status AskHome(const AdminOptions& options, ChannelFactory* channels, std::string address,
                     const Asked& asked) {
  absl::Status status;
  for (int hop = 0; hop <= kMaxRedirects; ++hop) {
    const auto timeout =
        std::chrono::duration_cast<milliseconds>(asked.timeout * options.time_scale);
    status = CallUnary(
        channels->Make(address, options.time_scale), asked.method, asked.request, timeout,
        [&options] { return Poll(options); }, asked.reply);
    if (ReasonOf(status) != Reason::kNotHome) return status;
    address = FieldsOf(status).address;
    if (address.empty()) return status;
  }
  return status;
}

absl::Status NoAnswer(const AdminOptions& options, const absl::Status& last,
                      const ChannelFactory& channels) {
  std::string why = channels.Explain(options.endpoints.back());
  if (why.empty()) why.assign(last.message().data(), last.message().size());
  return ReasonedError(
      absl::StatusCode::kUnavailable, Reason::kUnreachable,
      absl::StrCat("no state server answered at ", absl::StrJoin(options.endpoints, ", "),
                   " within ", options.patience.count(), " ms (last: ", why,
                   "); check that ballastd runs there"));
}

// Tries all endpoints in turn until one has an answer, or the patience is over.
absl::Status Ask(const AdminOptions& options, const Asked& asked) {
  if (options.endpoints.empty()) return BadArgument("no server to ask: endpoints is empty");
  BALLAST_ASSIGN_OR_RETURN(const std::shared_ptr<ChannelFactory> channels,
                           OpenSecurity(options.security));
  const SteadyClock::time_point deadline = SteadyClock::now() + options.patience;
  while (true) {
    absl::Status status;
    for (const std::string& endpoint : options.endpoints) {
      status = AskHome(options, channels.get(), endpoint, asked);
      if (!IsTransient(status)) return status;
    }
    if (SteadyClock::now() >= deadline) return NoAnswer(options, status, *channels);
    BALLAST_RETURN_IF_ERROR(SleepPolling(kPause, [&options] { return Poll(options); }));
  }
}

DurableJob ToJob(const v1::DurableJob& from) {
  DurableJob job;
  job.name = from.name();
  job.job_id = from.job();
  job.state = from.state();
  job.world = from.world();
  job.round = from.round();
  job.parameters = from.parameters();
  job.open_streams = from.open_streams();
  job.disk_bytes = from.disk_bytes();
  return job;
}

Snapshot ToSnapshot(const v1::Snapshot& from) {
  Snapshot snapshot;
  snapshot.job = from.job();
  snapshot.name = from.name();
  snapshot.round = from.round();
  snapshot.created_s = from.created_s();
  snapshot.bytes = from.bytes();
  snapshot.parameters = from.parameters();
  snapshot.world = from.world();
  return snapshot;
}

}  // namespace

absl::StatusOr<std::vector<DurableJob>> Admin::Jobs() const {
  v1::ListJobsReply reply;
  const v1::ListJobsRequest request;
  BALLAST_RETURN_IF_ERROR(Ask(options_, {method::kAdminListJobs, request, kListTimeout, &reply}));
  std::vector<DurableJob> jobs;
  for (const v1::DurableJob& job : reply.jobs()) jobs.push_back(ToJob(job));
  return jobs;
}

absl::Status Admin::DeleteJob(const std::string& job, bool force) const {
  v1::DeleteJobRequest request;
  request.set_name(job);
  request.set_force(force);
  v1::DeleteJobReply reply;
  return Ask(options_, {method::kAdminDeleteJob, request, kDeleteTimeout, &reply});
}

absl::StatusOr<std::vector<Snapshot>> Admin::Snapshots(const std::string& job) const {
  v1::ListSnapshotsRequest request;
  request.set_job(job);
  v1::ListSnapshotsReply reply;
  BALLAST_RETURN_IF_ERROR(
      Ask(options_, {method::kAdminListSnapshots, request, kListTimeout, &reply}));
  std::vector<Snapshot> snapshots;
  for (const v1::Snapshot& one : reply.snapshots()) snapshots.push_back(ToSnapshot(one));
  return snapshots;
}

absl::Status Admin::DeleteSnapshot(const std::string& job, const std::string& snapshot) const {
  v1::SnapshotRequest request;
  request.set_job(job);
  request.set_name(snapshot);
  v1::SnapshotReply reply;
  return Ask(options_, {method::kAdminDeleteSnapshot, request, kDeleteTimeout, &reply});
}

absl::StatusOr<DurableJob> Admin::Restore(const RestoreOptions& options) const {
  v1::RestoreSnapshotRequest request;
  request.set_job(options.job);
  request.set_name(options.snapshot);
  request.set_as(options.as);
  request.set_world(options.world);
  request.set_share(options.share);
  v1::RestoreSnapshotReply reply;
  BALLAST_RETURN_IF_ERROR(
      Ask(options_, {method::kAdminRestoreSnapshot, request, kWholeJobTimeout, &reply}));
  return ToJob(reply.job());
}

}  // namespace ballast::client
