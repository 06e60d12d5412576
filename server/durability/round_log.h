// RoundLog: what makes a round survive. The round room writes every reduced extent, the PREPARE
// record and the decision to it before it tells anybody; what "survives" means is the job's level.
// Comes from: server/round. Goes to: nothing at level `none`; the gradient log at the other levels.
// Thread safety: thread-compatible; used on the job's strand. Completions may run on any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "common/job/decide.h"
#include "common/tensor/dtype.h"

namespace ballast::server {

// The reduced gradient of one extent, exactly as the step will consume it.
struct ReducedExtent {
  uint64_t round = 0;
  uint32_t extent = 0;
  DType dtype = DType::kF32;   // fp32 sum, or the wire dtype when one slot contributes
  const void* data = nullptr;  // stays valid until the round is stepped
  size_t bytes = 0;
};

class RoundLog {
 public:
  virtual ~RoundLog() = default;
  // Starts writing `extent`; later extents may still be on the wire.
  virtual void AppendExtent(const ReducedExtent& extent) = 0;
  // The decision of a round; durable with the next Prepare at the latest.
  virtual void AppendDecision(uint64_t round, const Decision& decision) = 0;
  // Writes the PREPARE record and flushes everything appended so far; `done` runs once it survives.
  // A failed status is fatal for the log: the round must not be voted for.
  virtual void Prepare(uint64_t round, uint32_t contributor_digest,
                       std::function<void(absl::Status)> done) = 0;
  // Newest round whose contributions survive.
  virtual uint64_t durable_round() const = 0;
};

// Level `none`: nothing survives the process, and every Prepare completes at once.
class NullRoundLog : public RoundLog {
 public:
  void AppendExtent(const ReducedExtent&) override {}
  void AppendDecision(uint64_t, const Decision&) override {}
  void Prepare(uint64_t round, uint32_t, std::function<void(absl::Status)> done) override {
    durable_round_ = round;
    done(absl::OkStatus());
  }
  uint64_t durable_round() const override { return durable_round_; }

 private:
  uint64_t durable_round_ = 0;
};

}  // namespace ballast::server
