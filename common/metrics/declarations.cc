// The table of metrics; see declarations.h.
// Thread safety: constants.
#include "common/metrics/declarations.h"

namespace ballast {
namespace {

constexpr MetricKind kCounter = MetricKind::kCounter;
constexpr MetricKind kGauge = MetricKind::kGauge;
constexpr MetricKind kHistogram = MetricKind::kHistogram;

constexpr MetricDeclaration kDeclarations[] = {
    // Rounds and trainers.
    {"ballast_rounds_total", kCounter, "run, result",
     "Rounds that ended, by result: committed, skipped_overflow, halted or aborted."},
    {"ballast_round_duration_seconds", kHistogram, "phase",
     "Time spent in each phase of a round: collect, vote, step; and stream, per trainer."},
    {"ballast_last_round_commit_timestamp_seconds", kGauge, "run",
     "Unix time of the job's last committed round; 0 before the first."},
    {"ballast_grad_norm", kGauge, "run",
     "Global gradient norm of the job's last round, before clipping."},
    {"ballast_trainers", kGauge, "run, state",
     "Trainers of the job's epoch by state: active, unresponsive or left."},
    // The data path.
    {"ballast_push_bytes_total", kCounter, "run",
     "Gradient payload received from trainers in bytes, duplicates included."},
    {"ballast_copied_bytes_total", kCounter, "run",
     "Payload received that was copied into registers or state, in bytes."},
    {"ballast_pull_bytes_total", kCounter, "run", "Weight payload sent to trainers in bytes."},
    {"ballast_push_duplicates_total", kCounter, "",
     "Frames that arrived again with the same bytes; they change nothing."},
    {"ballast_push_conflicts_total", kCounter, "",
     "Frames that arrived again with other bytes; they were refused."},
    {"ballast_frames_rejected_total", kCounter, "reason",
     "Data frames that were refused, by reason."},
    {"ballast_checksum_errors_total", kCounter, "where",
     "Checksums that did not match, by the place where they were checked."},
    // Memory and disks.
    {"ballast_state_bytes", kGauge, "tier", "Optimizer state and weights held in bytes, by tier."},
    // gRPC, under the names that dashboards for gRPC servers use.
    {"grpc_server_started_total", kCounter, "grpc_type, grpc_service, grpc_method",
     "Calls that the server has begun to serve, by method."},
    {"grpc_server_handled_total", kCounter, "grpc_type, grpc_service, grpc_method, grpc_code",
     "Calls that have ended, by method and by the status code that the client got."},
    {"grpc_server_handling_seconds", kHistogram, "grpc_type, grpc_service, grpc_method",
     "Time from the beginning of a call to its end, by method."},
    // The process.
    {"ballast_build_info", kGauge, "version, revision, isa",
     "Always 1; the labels tell which build runs and the instruction set its kernels use."},
    {"process_resident_memory_bytes", kGauge, "", "Resident memory size in bytes."},
    {"process_cpu_seconds_total", kCounter, "", "User and system CPU time spent in seconds."},
    {"process_open_fds", kGauge, "", "Number of open file descriptors."},
    {"process_max_fds", kGauge, "", "Maximum number of open file descriptors."},
    {"process_start_time_seconds", kGauge, "",
     "Start time of the process since the Unix epoch in seconds."},
};

}  // namespace

absl::Span<const MetricDeclaration> MetricDeclarations() { return kDeclarations; }

void DeclareMetrics(MetricRegistry* registry) {
  for (const MetricDeclaration& d : kDeclarations) registry->Declare(d.name, d.kind, d.help);
}

}  // namespace ballast
