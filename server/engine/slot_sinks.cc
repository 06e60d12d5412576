#include "server/engine/slot_sinks.h"

#include <algorithm>
#include <utility>

#include "common/faults/failpoint.h"

namespace ballast::server {

Ack MakeAck(const RoundFsm& fsm, const RoundRecords& log, bool flush) {
  return {.round = fsm.round(),
          .window_base = fsm.window_base(),
          .durable_round = log.durable_round(),
          .applied_round = fsm.round() - 1,
          .flush = flush};
}

const std::shared_ptr<SlotSink>& SlotSinks::Sink(uint32_t slot) const {
  static const std::shared_ptr<SlotSink> kNone;
  return slot < sinks_.size() ? sinks_[slot] : kNone;
}

uint32_t SlotSinks::open_streams() const {
  return static_cast<uint32_t>(std::count_if(sinks_.begin(), sinks_.end(),
                                             [](const auto& sink) { return sink != nullptr; }));
}

void SlotSinks::Set(uint32_t slot, std::shared_ptr<SlotSink> sink) {
  if (sink != nullptr) opened_ = true;
  sinks_[slot] = std::move(sink);
}

void SlotSinks::TellResult(const RoundResult& result, const WeightBytes& weight_bytes) {
  last_result_ = result;
  for (uint32_t slot = 0; slot < sinks_.size(); ++slot) {
    if (sinks_[slot] == nullptr) continue;
    RoundResult told = result;
    told.weight_bytes = weight_bytes(slot);
    sinks_[slot]->OnResult(told);
  }
}

void SlotSinks::TellDone(const RoundDone& done) {
  last_done_ = done;
  BALLAST_FAILPOINT("round.before_tell");
  Each([&](SlotSink* sink) { sink->OnDone(done); });
  BALLAST_FAILPOINT("round.after_tell");
}

void SlotSinks::Remember(const RoundResult& result, const RoundDone& done) {
  last_result_ = result;
  last_done_ = done;
}

}  // namespace ballast::server
