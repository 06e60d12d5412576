// A session's present activity: none, a step (or an upload round), an upload of initial weights, or
// a fetch. Each kind holds the caller's memory and its own progress.
// Comes from: SessionCore. Goes to: SessionCore, ServerLink (what to send), FrameIo (where from).
// Thread safety: none; lives under the session's lock. The memory is the caller's, lent until the
// activity has ended and every link has let go of it.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "ballast/v1/data.pb.h"
#include "client/cpp/job/job_view.h"
#include "client/cpp/job/round_input.h"
#include "client/cpp/job/round_progress.h"
#include "client/cpp/transport/link.h"
#include "common/job/frame_header.h"
#include "common/job/job_spec.h"

namespace ballast::client {

struct Idle {};

// Initial weights, from the lead trainer.
struct InitialUpload {
  std::vector<void*> weights;  // per tensor; null where the upload does not reach
  uint32_t first_extent = 0;   // extents before have no memory here
};

// Weights or optimizer state of the present version, from every server.
struct Fetch {
  // One server's part.
  struct Part {
    bool has_info = false;
    uint64_t expected_bytes = 0;
    uint64_t received_bytes = 0;

    bool complete() const { return has_info && received_bytes == expected_bytes; }
    void Restart() {
      has_info = false;
      received_bytes = 0;
    }
  };

  bool complete() const;
  // Counts `bytes` of server number `index`. False: they were not asked for.
  bool Count(size_t index, uint64_t bytes);
  // Takes the steps of the tensors that a server owns a part of.
  void TakeSteps(const v1::StateInfo& info, size_t tensor_count);

  std::string request;                     // a ClientMessage
  std::vector<void*> weights;              // per tensor; null: left out
  std::vector<std::vector<void*>> states;  // per array and tensor, fp32; null: left out
  std::vector<uint64_t> tensor_step;
  std::vector<Part> parts;  // per server
};

// One round: of gradients, or one that uploads.
struct Step {
  Step(RoundInput lent, RoundProgress progress_of_round, Time now);

  // Whether this trainer pushes `extent` from its lent memory: in an upload the lead trainer does;
  // of gradients, contributors to the extent's sum do. The others lend theirs too: the next epoch
  // of the same round may have another contributor.
  bool Pushes(const JobView& job, uint32_t extent) const;
  const std::string& BeginFor(size_t server_index) const {
    return server_index == 0 ? home_begin : begin;
  }

  RoundInput input;
  std::string begin;       // RoundBegin, as a ClientMessage
  std::string home_begin;  // the same with the user state
  RoundProgress progress;
  uint64_t up_bytes = 0;  // payload sent, repeats included
  uint32_t world = 0;     // trainers of this round
  Time next_log;          // of a long wait
};

// A step of sums whose epoch ended before its round. The caller gets `why`.
struct StaleStep {
  absl::Status why;
};

using Activity = std::variant<Idle, InitialUpload, Fetch, Step, StaleStep>;

// Version that this trainer holds of the weights of server number `index`: `round`, or one more
// when the server has done its part of the running round.
uint64_t HeldVersion(const Activity& activity, size_t index, uint64_t round);

// Whether a step runs, or has ended without the caller knowing yet.
bool InRound(const Activity& activity);
// Whether frames go out: in a step and in an upload.
bool SendsFrames(const Activity& activity);
// Memory of `tensor` for frames of `kind`: initial weights leave from where weights land.
const char* SourceOf(const Activity& activity, FrameKind kind, uint32_t tensor);

}  // namespace ballast::client
