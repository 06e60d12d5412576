#include "server/convert/data_convert.h"

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "proto/convert/job_convert.h"
#include "proto/convert/policy_convert.h"
#include "proto/convert/status_convert.h"

namespace ballast::server {
namespace {

static_assert(static_cast<int>(UploadPlane::kMaster) == v1::STATE_PLANE_MASTER);
static_assert(kUploadPlaneMax == v1::STATE_PLANE_ARRAY3_LOW);

absl::Status BadFrame(absl::string_view message) {
  return ReasonedError(absl::StatusCode::kInvalidArgument, Reason::kBadFrame, message);
}

absl::StatusOr<UploadPlane> UploadFromProto(const v1::RoundBegin& begin) {
  if (begin.plane() == v1::STATE_PLANE_NONE) {
    return begin.upload() ? UploadPlane::kWeights : UploadPlane::kNone;
  }
  const auto plane = static_cast<int>(begin.plane());
  if (!begin.upload() && v1::StatePlane_IsValid(plane)) return static_cast<UploadPlane>(plane);
  return BadFrame(absl::StrCat("a round uploads plane number ", plane,
                               begin.upload() ? " and weights; it uploads one of them"
                                              : "; planes have the numbers 2 to 9"));
}

}  // namespace

void ToProto(const PolicyReport& policy, v1::Policy* out) {
  ballast::ToProto(policy.state, out);
  if (policy.why_skipped.kind != NonfiniteKind::kNone) {
    ballast::ToProto(policy.why_skipped, out->mutable_why_skipped());
  }
}

absl::StatusOr<RoundBegin> BeginFromProto(const v1::RoundBegin& begin, size_t presence_bytes_max) {
  if (begin.presence().size() > presence_bytes_max) {
    return BadFrame(absl::StrCat("presence of ", begin.presence().size(), " bytes, limit ",
                                 presence_bytes_max));
  }
  RoundBegin out;
  out.round = begin.round();
  out.layout_version = begin.layout_version();
  out.user_state = begin.user_state();
  out.loss_scale = begin.loss_scale();
  BALLAST_ASSIGN_OR_RETURN(out.upload, UploadFromProto(begin));
  if (begin.tensor_step_size() != 0) {
    out.steps = {{begin.tensor_step().begin(), begin.tensor_step().end()}, begin.opt_step(), {}};
    if (begin.has_schedule_index()) out.steps->schedule_index = begin.schedule_index();
  }
  out.gradient_crc32c.assign(begin.gradient_crc32c().begin(), begin.gradient_crc32c().end());
  out.weight_crc32c.assign(begin.weight_crc32c().begin(), begin.weight_crc32c().end());
  out.hyper.reserve(static_cast<size_t>(begin.hyper_size()));
  for (const v1::GroupHyper& group : begin.hyper()) {
    out.hyper.emplace_back(group.value().begin(), group.value().end());
  }
  out.presence.reserve(begin.presence().size() * 8);
  for (const char byte : begin.presence()) {
    for (int bit = 0; bit < 8; ++bit) {
      out.presence.push_back((static_cast<unsigned char>(byte) >> bit & 1) != 0);
    }
  }
  return out;
}

void ToProto(const RoundDone& done, v1::RoundDone* out) {
  out->set_round(done.round);
  out->set_step_ns(done.step_ns);
  out->set_weight_overflows(done.weight_overflows);
}

void ToProto(const FrameRefused& refused, v1::FrameRefused* out) {
  out->set_reason(static_cast<v1::Reason>(refused.reason));
  out->set_round(refused.round);
  out->set_extent(refused.extent);
  out->set_offset(refused.offset_bytes);
  out->set_message(refused.message);
}

void ToProto(const TrainerNews& news, v1::TrainerNews* out) {
  out->Clear();
  out->set_slot(news.slot);
  out->set_away(news.away);
  out->set_why(news.why);
  out->set_lease_left_ms(news.lease_left_ms);
}

void ToProto(const StateInfo& info, v1::StateInfo* out) {
  out->set_round(info.round);
  out->set_bytes(info.bytes);
  out->mutable_tensor_step()->Assign(info.tensor_step.begin(), info.tensor_step.end());
  out->set_opt_step(info.opt_step);
  if (info.policy.has_value()) ToProto(*info.policy, out->mutable_policy());
}

}  // namespace ballast::server
