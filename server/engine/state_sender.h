// StateSender: sends state to one trainer, one extent after the other: the state it fetches, or the
// weights of a round whose end it missed.
//
// Arrays stay acquired until they are sent, of as many extents as the tier allows (read_depth): all
// go out at once from memory, one after the other from NVMe.
// Comes from: TrainerSessions. Goes to: ModelState, SlotSinks.
// Thread safety: on the job's strand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "server/engine/round_control.h"
#include "server/engine/slot_sinks.h"
#include "server/round/job_strand.h"
#include "server/round/model_state.h"
#include "server/round/round_fsm.h"

namespace ballast::server {

class StateSender {
 public:
  struct SendRequest {
    uint32_t slot = 0;
    uint64_t round = 0;  // the version; sending ends when it is no longer the present one
    bool weights = false;
    std::vector<uint32_t> arrays;  // of the state
    std::vector<uint32_t> extents;
    std::function<void()> end;  // runs when all is sent; may be empty
  };

  // All arguments outlive this. `rounds` gets errors of the tier.
  StateSender(JobStrand* strand, const RoundFsm* fsm, ModelState* state, const SlotSinks* sinks,
              RoundControl* rounds)
      : strand_(strand), fsm_(fsm), state_(state), sinks_(sinks), rounds_(rounds) {}

  // Sends to the slot's present stream. A new stream of the slot, a step, or the end of the job
  // breaks it off.
  void Send(SendRequest request);

 private:
  struct Stream {
    SendRequest request;
    std::weak_ptr<SlotSink> sink;  // weak: its queued pieces own the Stream
    size_t next = 0;               // index in request.extents
    size_t held = 0;               // extents acquired, or being loaded
  };
  using StreamRef = std::shared_ptr<Stream>;

  void Continue(const StreamRef& stream);
  // `extent` is acquired.
  void SendExtent(const StreamRef& stream, uint32_t extent);
  // The trainer's sink, if it still listens and the state has the requested version.
  std::shared_ptr<SlotSink> Reader(const Stream& stream) const;
  void SendWeights(SlotSink* sink, uint32_t extent);
  // `owner` keeps the extent's arrays where they are.
  void SendArray(SlotSink* sink, uint32_t extent, uint32_t array,
                 const std::shared_ptr<const void>& owner);

  JobStrand* const strand_;
  const RoundFsm* const fsm_;
  ModelState* const state_;
  const SlotSinks* const sinks_;
  RoundControl* const rounds_;
};

}  // namespace ballast::server
