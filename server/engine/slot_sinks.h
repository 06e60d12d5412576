// SlotSinks: the open streams of a job at one server, by slot, and the messages that go to all of
// them; and the newest finished round, for trainers that missed its end.
// Comes from: TrainerSessions (which streams are open), RoundDriver (messages). Goes to: the sinks.
// Thread safety: on the job's strand.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "server/durability/round_log.h"
#include "server/round/round_fsm.h"
#include "server/round/round_types.h"

namespace ballast::server {

// The progress of this server: received, logged and applied rounds. `flush`: as Ack's.
Ack MakeAck(const RoundFsm& fsm, const RoundRecords& log, bool flush);

class SlotSinks {
 public:
  explicit SlotSinks(uint32_t slots) : sinks_(slots) {}

  // The slot's stream; null: none, or no such slot.
  const std::shared_ptr<SlotSink>& Sink(uint32_t slot) const;
  bool Has(uint32_t slot) const { return Sink(slot) != nullptr; }
  uint32_t slots() const { return static_cast<uint32_t>(sinks_.size()); }
  uint32_t open_streams() const;
  // Whether there ever was one.
  bool opened() const { return opened_; }

  // The slot exists, and has this stream from now on. Null: none.
  void Set(uint32_t slot, std::shared_ptr<SlotSink> sink);
  // The slots of a new epoch.
  void Resize(uint32_t slots) { sinks_.resize(slots); }

  // Calls `say` with every open stream, by slot.
  template <typename Say>
  void Each(Say say) const {
    for (const auto& sink : sinks_) {
      if (sink != nullptr) say(sink.get());
    }
  }
  // `weight_bytes` gives the bytes of weights that follow to each slot.
  using WeightBytes = std::function<uint64_t(uint32_t slot)>;
  void TellResult(const RoundResult& result, const WeightBytes& weight_bytes);
  void TellDone(const RoundDone& done);
  // After a restart: restores the last messages.
  void Remember(const RoundResult& result, const RoundDone& done);
  // Of the newest finished round; nothing before the first.
  const std::optional<RoundResult>& last_result() const { return last_result_; }
  const std::optional<RoundDone>& last_done() const { return last_done_; }

 private:
  std::vector<std::shared_ptr<SlotSink>> sinks_;  // per slot; null: no stream
  bool opened_ = false;
  std::optional<RoundResult> last_result_;
  std::optional<RoundDone> last_done_;
};

}  // namespace ballast::server
