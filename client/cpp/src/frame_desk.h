// Forms a trainer's frames over lent memory, and puts a server's frames into it.
// Comes from: SessionCore. Goes to: links (out), the caller's tensors (in).
// Thread safety: none; lives under the session's lock.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "ballast/client.h"
#include "client/cpp/src/activity.h"
#include "client/cpp/src/job_view.h"
#include "client/cpp/src/lent_memory.h"
#include "client/cpp/src/link.h"
#include "client/cpp/src/send_plan.h"
#include "client/cpp/src/server_link.h"
#include "proto/convert/frame_codec.h"

namespace ballast::client {

class FrameDesk {
 public:
  // `job` and `lease` outlive the desk.
  FrameDesk(const JobView* job, BufferLease* lease) : job_(job), lease_(lease) {}

  // The frame of `kind` over the memory that `activity` has lent. Copies no payload.
  Outgoing Form(FrameKind kind, const FrameRange& range, const Activity& activity);

  // Counts a frame of `server` for `activity`, and writes its payload to the tensors. Errors:
  // INTERNAL BAD_FRAME; DATA_LOSS BAD_CHECKSUM, after the bytes were written.
  absl::Status Take(const ServerLink& server, const DecodedFrame& frame, Activity* activity,
                    Time now);

  // All but copied_up_bytes, which the transport counts.
  TransferCounters& counters() { return counters_; }
  const TransferCounters& counters() const { return counters_; }

 private:
  absl::Status TakeWeights(const ServerLink& server, const DecodedFrame& frame, Activity* activity,
                           Time now);
  absl::Status TakeState(const ServerLink& server, const DecodedFrame& frame, Activity* activity);
  // Counts `frame` for a fetch. Error: INTERNAL BAD_FRAME for bytes that were not asked for.
  absl::Status Count(const ServerLink& server, const DecodedFrame& frame, Fetch* fetch) const;
  // destinations[t] is the memory of tensor t, or null to leave it out.
  absl::Status Store(const ServerLink& server, const DecodedFrame& frame,
                     const std::vector<void*>& destinations);

  const JobView* const job_;
  BufferLease* const lease_;
  TransferCounters counters_;
};

}  // namespace ballast::client
