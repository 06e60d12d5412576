#include "client/cpp/session/server_share.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/faults/mutant.h"

namespace ballast::client {

void ServerShare::TakeOwned() {
  owned_.clear();
  weight_bytes_ = 0;
  elements_ = 0;
  for (const uint32_t extent : job_->layout.push_order()) {
    if (!job_->Owns(server_id_, extent)) continue;
    owned_.push_back(extent);
    weight_bytes_ += job_->layout.ExtentWireBytes(extent);
    elements_ += job_->layout.extents()[extent].elements;
  }
}

void ServerShare::OnNewLink() {
  restoring_ = false;
  plan_.OnNewStream();
}

bool ServerShare::NoteMissing(uint32_t extent, bool answered) {
  missing_.push_back(extent);
  return extent >= job_->fresh_extent && !answered;
}

void ServerShare::AddMissing(uint32_t first_extent) {
  const auto is_new = [first_extent](uint32_t extent) { return extent >= first_extent; };
  missing_.erase(std::remove_if(missing_.begin(), missing_.end(), is_new), missing_.end());
  std::copy_if(owned_.begin(), owned_.end(), std::back_inserter(missing_), is_new);
}

void ServerShare::SendMissing(uint32_t first_extent) {
  const auto first_sent =
      std::stable_partition(missing_.begin(), missing_.end(),
                            [first_extent](uint32_t extent) { return extent < first_extent; });
  std::vector<uint32_t> extents(first_sent, missing_.end());
  missing_.erase(first_sent, missing_.end());
  restoring_ = false;
  kind_ = FrameKind::kInit;
  plan_.Start(job_->round, std::move(extents), {}, /*windowed=*/false);
}

bool ServerShare::StartStep(const Step& step) {
  resumed_ = false;
  return Begin(step);
}

bool ServerShare::ResumeStep(const Step& step, const std::vector<uint32_t>& complete) {
  resumed_ = true;
  if (!BALLAST_MUTANT(kKeepComplete)) complete_.clear();
  complete_.insert(complete_.end(), complete.begin(), complete.end());
  return Begin(step);
}

bool ServerShare::Begin(const Step& step) {
  restoring_ = !missing_.empty() && !BALLAST_MUTANT(kNoInitAgain);
  if (!restoring_) return BeginRound(step);
  BALLAST_PROBE(kInitAgain);
  kind_ = FrameKind::kInit;
  plan_.Start(job_->round, missing_, {}, /*windowed=*/false);
  return false;
}

bool ServerShare::BeginRound(const Step& step) {
  restoring_ = false;
  missing_.clear();
  kind_ = FrameKind::kGradient;
  std::vector<uint32_t> left_out;
  std::copy_if(owned_.begin(), owned_.end(), std::back_inserter(left_out),
               [&](uint32_t extent) { return !step.Pushes(*job_, extent); });
  if (resumed_) {
    left_out.insert(left_out.end(), complete_.begin(), complete_.end());
    plan_.Resume(job_->round, owned_, step.input.present, left_out);
  } else {
    plan_.Start(job_->round, owned_, step.input.present, /*windowed=*/true, left_out);
  }
  return true;
}

bool ServerShare::OnAck(const v1::Ack& ack, const Step* step) {
  plan_.OnAck(ack.received_bytes(), ack.round(), ack.window_base());
  if (step == nullptr || !restoring_ || !plan_.all_received()) return false;
  return BeginRound(*step);
}

absl::Status ServerShare::OnRefused(const v1::FrameRefused& refused) {
  return plan_.OnRefused(static_cast<Reason>(refused.reason()), refused.round(), refused.extent(),
                         refused.offset(), refused.message());
}

}  // namespace ballast::client
