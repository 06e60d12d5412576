// FsmServer: a RoundFsm with a driver that carries out its effects when the schedule says so, and
// checks that the machine asks for nothing out of turn.
// Comes from: fsm_world. Goes to: RoundFsm. Thread safety: one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "server/round/round_fsm.h"

namespace ballast::fuzz {

inline constexpr uint32_t kFsmChunkBytes = 256;
inline constexpr uint32_t kFsmWindow = 2;

// What both servers of a job have said so far.
struct FsmHistory {
  // By epoch, round and server; the second of a LAMB round replaces the first.
  std::map<std::tuple<uint32_t, uint64_t, uint32_t>, Vote> votes;
  std::vector<server::VoteInput> sent;
  std::map<uint64_t, std::string> decisions;  // by round, as bytes
  // A vote that no server gave was delivered, or a beginning that a trainer gave to one server
  // only: servers may disagree, and must not crash.
  bool forged = false;
};

class FsmServer {
 public:
  FsmServer(const server::JobPlan& plan, uint32_t self, FsmHistory* history);

  const server::RoundFsm& fsm() const { return *fsm_; }
  bool over() const { return over_; }

  void Feed(const server::Input& input);
  // As the engine does: the machine admits the frame, and takes it then.
  void Deliver(const FrameHeader& frame);

  // Each finishes something that an effect has begun, if there is any.
  void FinishReduce(size_t which);
  void FinishFlush();
  void FinishMeasure();
  void FinishStep();

  // The process dies, and another one continues with the flushed data.
  void Restart();
  // Goes over to the epoch of `plan` if the rounds before it are over and no worker is busy.
  void Adopt(const server::JobPlan& plan);

 private:
  // Work that waits to be finished.
  enum class Due : uint8_t { kNone, kPrepare, kRatios, kMeasure, kStep };

  void Take(const server::Effects& effects);
  void On(const server::InitialComplete& effect);
  void On(const server::AckSlot& effect);
  void On(const server::MoveWindow& effect);
  void On(const server::ReduceExtent& effect);
  void On(const server::PrepareRound& effect);
  void On(const server::SendVote& effect);
  void On(const server::MeasureRound& effect);
  void On(const server::LogRatios& effect);
  void On(const server::ApplyRound& effect);
  void On(const server::SkipRound& effect);
  void On(const server::OpenRound& effect);
  void On(const server::FailSlot& effect);
  void On(const server::FailJob& effect);
  void On(const server::FinishJob& effect);

  void Begin(Due due);
  void CheckDecision(const Decision& decision);
  void ForgetRound();
  std::vector<RunSquares> Squares() const;
  void Look() const;

  const uint32_t self_;
  FsmHistory* const history_;
  std::unique_ptr<server::RoundFsm> fsm_;
  Due due_ = Due::kNone;
  bool over_ = false;
  std::deque<uint32_t> reducing_;                     // extents
  std::map<uint32_t, server::ReducedInput> reduced_;  // of the open round
  std::optional<server::PreparedRecord> prepared_;    // of the open round, once flushed
  std::optional<server::PreparedRecord> preparing_;   // not yet flushed
  std::vector<float> ratios_;                         // flushed
  std::vector<float> logging_;                        // not yet flushed
  bool decided_ = false;                              // the open round
};

}  // namespace ballast::fuzz
