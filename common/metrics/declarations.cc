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
    {"ballast_rounds_total", kCounter, "tenant, run, result",
     "Rounds that ended, by result: committed, skipped_overflow, halted or aborted."},
    {"ballast_round_duration_seconds", kHistogram, "phase",
     "Time spent in each phase of a round: collect, vote, step; and stream, per trainer."},
    {"ballast_last_round_commit_timestamp_seconds", kGauge, "tenant, run",
     "Unix time of the job's last committed round, or of the server's start after it; 0 before the "
     "first."},
    {"ballast_round_phase", kGauge, "tenant, run, phase",
     "1 for the phase that the job's open round is in: idle, collect, vote or step; 0 for others."},
    {"ballast_grad_norm", kGauge, "tenant, run",
     "Global gradient norm of the job's last round, before clipping."},
    {"ballast_loss_scale", kGauge, "tenant, run",
     "Loss scale for the job's next backward pass; 0 before the first decision."},
    {"ballast_trainers", kGauge, "tenant, run, state",
     "Trainers of the job's epoch by state: active, unresponsive or left."},
    {"ballast_admissions_refused_total", kCounter, "reason",
     "Calls of trainers to attach or to grow a job that were refused, by reason."},
    {"ballast_calls_refused_total", kCounter, "reason",
     "Calls that the caller's identity does not permit, by reason; docs/security.md names them."},
    // The data path.
    {"ballast_push_bytes_total", kCounter, "tenant, run",
     "Gradient payload received from trainers in bytes, duplicates included."},
    {"ballast_copied_bytes_total", kCounter, "tenant, run",
     "Payload received that was copied into registers or state, in bytes."},
    {"ballast_pull_bytes_total", kCounter, "tenant, run",
     "Weight payload sent to trainers in bytes."},
    {"ballast_push_duplicates_total", kCounter, "",
     "Frames that arrived again with the same bytes; they change nothing."},
    {"ballast_push_conflicts_total", kCounter, "",
     "Frames that arrived again with other bytes; they were refused."},
    {"ballast_frames_rejected_total", kCounter, "reason",
     "Data frames that were refused, by reason."},
    {"ballast_checksum_errors_total", kCounter, "where",
     "Checksums that did not match, by the place where they were checked: push, log or image."},
    {"ballast_credit_wait_seconds_total", kCounter, "tenant, run",
     "Time in which streams of trainers were not read, because older data was not stored yet."},
    // Memory and disks.
    {"ballast_state_bytes", kGauge, "tier",
     "Masters and optimizer state held in bytes, by the tier they live in: dram or nvme."},
    {"ballast_tier_capacity_bytes", kGauge, "tier",
     "What a tier has room for in bytes: the state budget, or the disk of storage.data_dir."},
    {"ballast_memory_planned_bytes", kGauge, "",
     "Memory that the plans of all jobs take of the budget, in bytes."},
    {"ballast_memory_budget_bytes", kGauge, "", "Memory that jobs may take together, in bytes."},
    {"ballast_memory_explained_bytes", kGauge, "",
     "Memory that this process may have by the plans of its jobs and its limits, in bytes. What it "
     "has above that (process_resident_memory_bytes) connections took."},
    {"ballast_disk_free_bytes", kGauge, "directory",
     "Free bytes on the disk of a directory of the configuration: data or snapshot."},
    {"ballast_disk_size_bytes", kGauge, "directory",
     "Size in bytes of the disk of a directory of the configuration: data or snapshot."},
    {"ballast_disk_answers", kGauge, "directory",
     "1 while the disk of a directory says within 30 s how full it is; else 0."},
    {"ballast_disk_wait_seconds", kGauge, "directory",
     "Age of the oldest write, flush or other call for a directory that has not ended; 0: none."},
    // The gradient log and the images.
    {"ballast_log_append_duration_seconds", kHistogram, "",
     "Time until the log has taken a record; it may still be on its way to the disk."},
    {"ballast_log_flush_duration_seconds", kHistogram, "",
     "Time until everything that was appended to a log of durability power survives."},
    {"ballast_log_bytes_total", kCounter, "tenant, run",
     "Bytes appended to the job's gradient log."},
    {"ballast_log_unflushed_bytes", kGauge, "tenant, run",
     "Bytes appended to the job's log that no flush has covered."},
    {"ballast_log_free_bytes", kGauge, "tenant, run",
     "Bytes that the job's log has room for before it lets older rounds go."},
    {"ballast_log_short_of_room", kGauge, "tenant, run",
     "1 while the job's rounds wait for room in its log; else 0."},
    {"ballast_image_writes_total", kCounter, "tenant, run",
     "Images of extents written to the job's rolling checkpoint."},
    {"ballast_image_write_bytes_total", kCounter, "tenant, run",
     "Bytes of images written to the job's rolling checkpoint."},
    {"ballast_image_io_duration_seconds", kHistogram, "op",
     "Time that one image of an extent takes to be read or written, by op."},
    {"ballast_last_snapshot_timestamp_seconds", kGauge, "tenant, run",
     "Unix time of the job's newest snapshot, at its home; 0 without one."},
    {"ballast_recovery_duration_seconds", kGauge, "phase",
     "Time that recovering jobs took since the start, by phase: open the files, load the state."},
    {"ballast_recovery_replayed_rounds_total", kCounter, "",
     "Rounds that were applied again from gradient logs."},
    // Servers and threads.
    {"ballast_serving", kGauge, "",
     "1 while the server serves jobs; 0 while it waits for its peers file, replays or ends."},
    {"ballast_damaged_jobs", kGauge, "",
     "Durable jobs that this server could not open: files are missing or damaged, or cluster.peers "
     "lacks a server of theirs."},
    {"ballast_jobs_under_way", kGauge, "",
     "Jobs of which this server is the home that wait for trainers or run; those at rest and those "
     "that have ended are not counted."},
    {"ballast_jobs_limit", kGauge, "", "Jobs that may be under way: limits.max_jobs."},
    {"ballast_files_at_fault", kGauge, "",
     "Files of certificates, tokens, denied identities and quotas that have a mistake, so that "
     "their older content is in force. See ballastctl health."},
    {"ballast_peer_reachable", kGauge, "peer",
     "1 while the server with this id answers this one's heartbeat; else 0."},
    {"ballast_cluster_problems", kGauge, "",
     "What other servers' Hellos show to be wrong: their cluster.peers differs from this server's, "
     "or two processes have the id of one server. See ballastctl health."},
    {"ballast_tls_cert_expiry_timestamp_seconds", kGauge, "file",
     "Unix time at which the first certificate in use expires, by the file it stands in: "
     "certificate or ca."},
    {"ballast_tls_reloads_total", kCounter, "result",
     "Times that files of certificates were read because of a change, by result: loaded, or "
     "refused, which changes nothing."},
    {"ballast_listener_accepts", kGauge, "",
     "1 while the gRPC port answers a new connection of the server to itself; else 0."},
    {"ballast_connections", kGauge, "",
     "Connections of the gRPC port that are open, those that have not spoken yet included."},
    {"ballast_connections_accepted_total", kCounter, "",
     "Connections of the gRPC port that began as a client does, and are served."},
    {"ballast_connections_refused_total", kCounter, "reason",
     "Connections of the gRPC port that were closed before they were served, or for what they "
     "sent, by reason."},
    {"ballast_handshake_failures_total", kCounter, "cause",
     "Connections of the gRPC port whose TLS handshake failed, by cause; those of a server's own "
     "probes have the cause probe."},
    {"ballast_worker_busy_seconds_total", kCounter, "",
     "Time that the workers have spent in kernels, summed over all of them."},
    {"ballast_workers", kGauge, "", "Number of worker threads for kernels."},
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
    {"ballast_cluster_info", kGauge, "cluster",
     "Always 1; the label is cluster.name, by which a dashboard tells clusters apart."},
    {"process_resident_memory_bytes", kGauge, "", "Resident memory size in bytes."},
    {"process_virtual_memory_bytes", kGauge, "", "Virtual memory size in bytes."},
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
