#include "client/cpp/job/job_view.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace ballast::client {
namespace {

constexpr uint32_t kDefaultHeartbeatMs = 500;
constexpr uint32_t kDefaultReportAfterMs = 2500;
// A job's first round. Later ones have changed the initial weights.
constexpr uint64_t kFirstRound = 1;

std::chrono::nanoseconds Scaled(uint32_t ms, uint32_t default_ms, double time_scale) {
  const double scaled_ms = (ms > 0 ? ms : default_ms) * time_scale;
  return std::chrono::nanoseconds(static_cast<int64_t>(scaled_ms * 1e6));
}

// The server has stretched its own; stretched twice it is longer than the server waits for one.
std::chrono::nanoseconds HeartbeatOf(const v1::AttachReply& reply, double time_scale) {
  if (reply.heartbeat_ms() > 0) return std::chrono::milliseconds(reply.heartbeat_ms());
  return Scaled(0, kDefaultHeartbeatMs, time_scale);
}

SendLimits LimitsOf(const v1::AttachReply& reply) {
  return {reply.chunk_bytes(), reply.credit_bytes(), reply.window_extents()};
}

// The first extent of the last `tensors` tensors.
uint32_t FirstFresh(const Layout& layout, uint32_t tensors) {
  const size_t known = layout.tensors().size() - std::min<size_t>(tensors, layout.tensors().size());
  uint32_t extent = 0;
  for (const Extent& each : layout.extents()) {
    if (layout.runs()[each.first_run].tensor >= known) break;
    ++extent;
  }
  return extent;
}

}  // namespace

Members MembersOf(const v1::EpochRecord& record) {
  Members members;
  for (const v1::Member& member : record.members()) members[member.slot()] = member.incarnation();
  return members;
}

std::vector<ContributorSet> ContributorsIn(const v1::EpochRecord& record) {
  std::vector<ContributorSet> sets;
  for (const v1::ContributorSet& set : record.contributors()) {
    sets.push_back({{set.slots().begin(), set.slots().end()},
                    set.divisor(),
                    static_cast<ContributorRule>(set.rule())});
  }
  return sets;
}

JobView::JobView(const JobOptions& job_options, const AttachedJob& attached)
    : options(job_options),
      id(attached.reply.job()),
      incarnation(attached.incarnation),
      durable(IsDurable(options)),
      resumed(attached.reply.resumed()),
      limits(LimitsOf(attached.reply)),
      heartbeat(HeartbeatOf(attached.reply, options.time_scale)),
      report_after(
          Scaled(attached.reply.report_after_ms(), kDefaultReportAfterMs, options.time_scale)),
      spec(attached.spec),
      layout(attached.layout),
      layout_version(attached.reply.layout_version()),
      epoch(attached.reply.epoch().epoch()),
      start_round(attached.reply.epoch().start_round()),
      members(MembersOf(attached.reply.epoch())),
      contributors(ContributorsIn(attached.reply.epoch())),
      round(resumed ? start_round : 0),
      policy{StartPolicy(attached.spec), Nonfinite()} {
  if (attached.reply.has_policy()) policy.Take(attached.reply.policy());
  if (round > kFirstRound) fresh_extent = FirstFresh(layout, attached.reply.fresh_tensors());
}

std::vector<ContributorSet> JobView::ContributorsByRule() const {
  std::vector<uint32_t> slots;
  for (const auto& member : members) slots.push_back(member.first);
  return ContributorsBy(spec.gradients, slots, spec.group_count);
}

bool JobView::Contributes(uint32_t extent) const {
  const uint32_t group = layout.extents()[extent].group;
  // Each does, where the record has no set.
  return group >= contributors.size() ||
         ballast::Contributes(contributors[group], layout.Turn(extent), options.slot);
}

std::vector<DealtExtent> JobView::Dealt() const {
  std::vector<DealtExtent> dealt;
  for (const uint32_t e : layout.push_order()) {
    const Extent& extent = layout.extents()[e];
    DealtExtent& added = dealt.emplace_back();
    added.group = extent.group;
    added.slot = members.begin()->first;
    if (extent.group < contributors.size()) {
      added.slot = ContributorsAt(contributors[extent.group], layout.Turn(e)).front();
    }
    for (uint32_t r = 0; r < extent.run_count; ++r) {
      const Run& run = layout.runs()[extent.first_run + r];
      added.ranges.push_back({run.tensor, run.tensor_offset, run.elements});
    }
  }
  return dealt;
}

bool JobView::ComparesGradients() const {
  return world() > 1 && GradientDigestsDue(spec.gradients, round, start_round);
}

ErrorFields JobView::Fields() const {
  ErrorFields fields;
  fields.job = options.job;
  fields.round = round;
  return fields;
}

Policy JobView::ShownPolicy() const {
  Policy shown = Shown(policy.state);
  if (shown.last_skipped && policy.why_skipped.kind != NonfiniteKind::kNone) {
    shown.why_skipped = NonfiniteText(layout, spec, policy.why_skipped);
  }
  return shown;
}

absl::Status JobView::InThisRound(const absl::Status& status) const {
  ErrorFields fields = FieldsOf(status);
  if (fields.round == 0) fields.round = round;
  if (fields.job.empty()) fields.job = options.job;
  return ReasonedError(status.code(), ReasonOf(status), status.message(), fields);
}

absl::Status JobView::SumsAreStale(uint32_t of_epoch, uint32_t next_epoch) const {
  return ReasonedError(
      absl::StatusCode::kFailedPrecondition, Reason::kStaleEpoch,
      absl::StrCat("job \"", options.job, "\" went from epoch ", of_epoch, " to ", next_epoch,
                   " in round ", round, ", so its trainers are other processes than those whose ",
                   "gradients were summed. Nothing of round ", round, " was applied; sum the ",
                   "gradients of the new processes and step again"),
      Fields());
}

absl::Status JobView::SlotWasTaken(const absl::Status& status) const {
  ErrorFields fields = FieldsOf(status);
  fields.job = options.job;
  fields.slot = static_cast<int>(options.slot);
  return ReasonedError(
      absl::StatusCode::kFailedPrecondition, Reason::kWrongIncarnation,
      absl::StrCat("slot ", options.slot, " of job \"", options.job,
                   "\" was given to another process, or given up when its lease ",
                   "ran out, while this one was gone or thought dead. The job ",
                   "continues without it, from the newest finished round; nothing ",
                   "is lost. End this one, or give two processes different ", "ranks (",
                   status.message(), ")"),
      fields);
}

}  // namespace ballast::client
