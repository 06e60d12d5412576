#include "client/cpp/job/send_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace ballast::client {

void SendPlan::Start(uint64_t round, std::vector<uint32_t> extents, std::vector<bool> present,
                     bool windowed, const std::vector<uint32_t>& left_out) {
  ++number_;
  round_ = round;
  windowed_ = windowed;
  resumed_ = false;
  window_base_ = acked_round_ == round ? acked_base_ : 0;
  extents_ = std::move(extents);
  present_ = std::move(present);
  left_out_ = {left_out.begin(), left_out.end()};
  position_ = 0;
  chunk_ = 0;
  chunks_.clear();
  resend_.clear();
  checksum_failures_.clear();
  base_when_sent_.clear();
  if (!extents_.empty()) {
    OpenExtent();
    SkipFinishedExtents();
  }
}

void SendPlan::Resume(uint64_t round, std::vector<uint32_t> extents, std::vector<bool> present,
                      const std::vector<uint32_t>& complete) {
  Start(round, std::move(extents), std::move(present), /*windowed=*/true, complete);
  resumed_ = true;
}

void SendPlan::OnNewStream() {
  Start(round_, {}, {}, windowed_);
  sent_bytes_ = 0;
  received_bytes_ = 0;
  acked_round_ = 0;
}

void SendPlan::OpenExtent() {
  chunk_ = 0;
  chunks_.clear();
  const uint32_t extent = extents_[position_];
  if (left_out_.count(extent) > 0) return;
  chunks_ = ChunkRanges(*layout_, extent, limits_.chunk_bytes, present_);
}

void SendPlan::SkipFinishedExtents() {
  while (position_ < extents_.size() && chunk_ == chunks_.size()) {
    if (++position_ < extents_.size()) OpenExtent();
  }
}

bool SendPlan::InWindow(uint32_t position) const {
  return !windowed_ || position < static_cast<uint64_t>(window_base_) + limits_.window_extents;
}

bool SendPlan::HasCredit(uint32_t bytes) const {
  const uint64_t outstanding = sent_bytes_ - std::min(sent_bytes_, received_bytes_);
  return outstanding == 0 || outstanding + bytes <= limits_.credit_bytes;
}

std::optional<FrameRange> SendPlan::Next() {
  for (auto it = resend_.begin(); it != resend_.end(); ++it) {
    const bool moved = !it->waits || window_base_ > it->after_base;
    if (!moved || !InWindow(it->frame.position)) continue;
    if (!HasCredit(it->frame.length)) return std::nullopt;
    const FrameRange frame = it->frame;
    resend_.erase(it);
    NoteSent(frame);
    return frame;
  }
  if (position_ == extents_.size()) return std::nullopt;
  const uint32_t position = static_cast<uint32_t>(position_);
  const ChunkRange& chunk = chunks_[chunk_];
  if (!InWindow(position) || !HasCredit(chunk.length_bytes)) return std::nullopt;
  const FrameRange frame{extents_[position_], position, chunk.offset_bytes, chunk.length_bytes};
  NoteSent(frame);
  ++chunk_;
  SkipFinishedExtents();
  return frame;
}

void SendPlan::NoteSent(const FrameRange& frame) {
  sent_bytes_ += frame.length;
  if (windowed_) base_when_sent_[FrameKey(frame.extent, frame.offset)] = window_base_;
}

void SendPlan::OnAck(uint64_t received_bytes, uint64_t round, uint32_t window_base) {
  received_bytes_ = std::max(received_bytes_, received_bytes);
  if (round != acked_round_) acked_base_ = 0;
  acked_round_ = round;
  acked_base_ = std::max(acked_base_, window_base);
  if (round == round_) window_base_ = std::max(window_base_, window_base);
}

std::optional<FrameRange> SendPlan::FindSent(uint32_t extent, uint32_t offset) const {
  const auto found = std::find(extents_.begin(), extents_.end(), extent);
  if (found == extents_.end()) return std::nullopt;
  const uint32_t position = static_cast<uint32_t>(found - extents_.begin());
  if (position > position_) return std::nullopt;
  for (const ChunkRange& chunk : ChunkRanges(*layout_, extent, limits_.chunk_bytes, present_)) {
    if (chunk.offset_bytes != offset) continue;
    return FrameRange{extent, position, chunk.offset_bytes, chunk.length_bytes};
  }
  return std::nullopt;
}

absl::Status SendPlan::OnRefused(Reason reason, uint64_t round, uint32_t extent, uint32_t offset,
                                 const std::string& message) {
  if (reason == Reason::kDuplicate || round < round_) return absl::OkStatus();
  if (reason == Reason::kRoundClosed && resumed_) return absl::OkStatus();
  const bool may_resend =
      reason == Reason::kOutOfWindow ||
      (reason == Reason::kBadChecksum && ++checksum_failures_[FrameKey(extent, offset)] == 1);
  const std::optional<FrameRange> frame =
      may_resend ? FindSent(extent, offset) : std::optional<FrameRange>();
  if (frame.has_value()) {
    const uint32_t base = base_when_sent_[FrameKey(extent, offset)];
    resend_.push_back({*frame, base, reason == Reason::kOutOfWindow});
    return absl::OkStatus();
  }
  ErrorFields fields;
  fields.round = round;
  const absl::StatusCode code =
      reason == Reason::kBadChecksum ? absl::StatusCode::kDataLoss : absl::StatusCode::kInternal;
  return ReasonedError(code, reason,
                       absl::StrCat("frame of round ", round, " extent ", extent, " offset ",
                                    offset, " was refused: ", ReasonName(reason), ": ", message),
                       fields);
}

void SendPlan::RetryRefused() {
  for (Resend& resend : resend_) resend.waits = false;
}

}  // namespace ballast::client
