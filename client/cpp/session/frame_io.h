// Forms a trainer's frames over lent memory, and puts a server's frames into it.
// Comes from: SessionCore. Goes to: links (out), the caller's tensors (in).
// Thread safety: none; lives under the session's lock.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ballast/client.h"
#include "client/cpp/job/activity.h"
#include "client/cpp/job/device_staging.h"
#include "client/cpp/job/job_view.h"
#include "client/cpp/job/lent_memory.h"
#include "client/cpp/job/send_plan.h"
#include "client/cpp/session/server_link.h"
#include "client/cpp/transport/link.h"
#include "proto/convert/frame_codec.h"

namespace ballast::client {

class FrameIo {
 public:
  // `job`, `lease` and `device` outlive the object. `device`: null if all tensors are the host's.
  FrameIo(const JobView* job, BufferLease* lease, DeviceStaging* device)
      : job_(job), lease_(lease), device_(device) {}

  // The next frame that the server's share has to send, over the memory that `activity` has lent;
  // nullopt when there is none now. Copies no payload on the host. Error: the device's.
  absl::StatusOr<std::optional<Outgoing>> Next(ServerLink* server, const Activity& activity);
  // Next had no pinned buffer, and nothing says when there is one: ask again soon.
  bool starved() const { return starved_; }
  // The activity is over: drops frames begun and not sent.
  void DropBegun();
  // It has ended with an error: waits until no device work touches its tensors.
  void EndEarly();

  // Counts a frame of `server` for `activity`, and writes its payload to the tensors. Errors:
  // INTERNAL BAD_FRAME; DATA_LOSS BAD_CHECKSUM, after the bytes were written.
  absl::Status Take(const ServerLink& server, const DecodedFrame& frame, Activity* activity,
                    Time now);

  // All but copied_up_bytes, which the transport counts.
  TransferCounters& counters() { return counters_; }
  const TransferCounters& counters() const { return counters_; }

 private:
  // A frame whose bytes are on their way from the device.
  struct Begun {
    uint64_t plan_number;
    FrameKind kind;
    FrameRange range;
    std::optional<size_t> buffer;  // without one, all its memory is the host's
  };

  DType DTypeOf(const FrameRange& range) const {
    return job_->layout.extents()[range.extent].dtype;
  }
  std::vector<TensorPiece> PiecesOfRange(const FrameRange& range) const;
  absl::StatusOr<Begun> Begin(ServerLink* server, const FrameRange& range,
                              const Activity& activity);
  absl::StatusOr<Outgoing> Form(const Begun& begun, const Activity& activity);
  absl::Status BeginAhead(ServerLink* server, const Activity& activity, std::deque<Begun>* begun);
  void Drop(const Begun& begun);
  // `status`, a device's, with the tensors it concerns: those of a frame's pieces.
  absl::Status Named(const absl::Status& status, const std::vector<TensorPiece>& pieces) const;
  absl::Status TakeWeights(const ServerLink& server, const DecodedFrame& frame, Activity* activity,
                           Time now);
  absl::Status TakeState(const ServerLink& server, const DecodedFrame& frame, Activity* activity);
  // Counts `frame` for a fetch. Error: INTERNAL BAD_FRAME for bytes not asked for.
  absl::Status Count(const ServerLink& server, const DecodedFrame& frame, Fetch* fetch) const;
  // Destinations of a frame's bytes, per piece; those for the device go through a pinned buffer
  // first.
  struct Landing {
    std::vector<void*> outs;
    std::optional<size_t> buffer;
    std::vector<device::Piece> on_device;
  };
  absl::StatusOr<Landing> LandingOf(const std::vector<TensorPiece>& pieces, size_t element_bytes,
                                    const std::vector<void*>& destinations);
  // destinations[t] is the memory of tensor t, or null to leave it out.
  absl::Status Store(const ServerLink& server, const DecodedFrame& frame,
                     const std::vector<void*>& destinations);

  const JobView* const job_;
  BufferLease* const lease_;
  DeviceStaging* const device_;
  std::map<size_t, std::deque<Begun>> begun_;  // per server, in the order of its plan
  bool starved_ = false;
  TransferCounters counters_;
};

}  // namespace ballast::client
