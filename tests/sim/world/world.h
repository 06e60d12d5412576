// World: virtual time and the heap of events, ordered by (time, sequence); who lives, who is
// paused; every machine's clocks; what went wrong. Everything in the simulator happens inside an
// event. Comes from: the simulation. Goes to: network, servers, trainers, faults. Thread safety:
// one thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/faults/mutant.h"
#include "tests/sim/world/clock.h"
#include "tests/sim/world/random.h"

namespace ballast::sim {

inline constexpr NodeId kNobody = UINT32_MAX;

enum class EventKind : uint8_t {
  kMessage,
  kClosed,
  kVoteCall,
  kVoteAnswer,
  kLog,
  kImages,
  kKernel,
  kTimer,
  kStart,
  kFault,
  kStrand,
  kDisk,
};

// Situations that a long enough run must have met, and every kind of fault; see --cover.
enum class Cover : uint8_t {
  kSkippedRound,
  kUntouchedExtent,
  kLogFull,
  kSegmentReused,
  kExtentAhead,
  kReplay,
  kRestoredPrepared,
  kRestoredGradient,
  kInitAgain,
  kStepWaits,
  kMeetingOpened,
  kMeetingTimedOut,
  kMeetingStale,
  kMeetingGivenUp,
  kMeetingOlder,
  kMeetingConflict,
  kRankLate,
  kRankWrong,
  kLastRoundAgain,
  kAttachWaits,
  kVoteFromAnswer,
  kDuplicateFrame,
  kOutOfWindow,
  kBadChecksum,
  kDiedInDisk,
  kSealWaits,
  kAdoptWaits,
  kReplaced,
  kOtherWorld,
  kInitDropped,
  kWoken,
  kEndAtRest,
  kChangeTakenUp,
  kBegunAgain,
  kBegunWithFewer,
  kFenced,
  kUpload,
  kStatePlane,
  kOtherOptimizer,
  kScaledSkip,
  kScheduled,
  kMasterAlone,
  kFourArrays,
  kReducedGradients,
  kNewContributor,
  kScatteredGradients,
  kDealtAnew,
  kOldExtentSaved,
  kExtentLoaded,
  kExtentWrittenBack,
  kFlushesOverlap,
  kWallClockSet,
  kClockLeapt,
  kServerKilled,
  kPowerLost,
  kEndInChange,
  kEndInRecord,
  kEndSealed,
  kUnsyncedBytesAtPowerLoss,
  kUnsyncedNamesAtPowerLoss,
  kStreamBroke,
  kCallLost,
  kCallerHungUp,
  kHomeNamed,
  kHomeAway,
  kHomeAsked,
  kCallRepeated,
  kMessageLate,
  kLinkCut,
  kServerPaused,
  kTrainerPaused,
  kStraggler,
  kWriteFailed,
  kSyncFailed,
  kStorageFailed,
  kFullDisk,
  kBitsRotted,
  kFileVanished,
  kWriteLost,
  kWriteMisdirected,
  kStray,
  kFrameDamaged,
  kTrainerKilled,
  kTrainerHung,
  kTrainerLeft,
  kTrainerJoined,
  kSnapshotTaken,
  kRoundsBesideCapture,
  kEndInSnapshot,
  kHoldGaveWay,
  kSnapshotGivenUp,
  kSnapshotRemoved,
  kSnapshotOfResting,
  kShelfPowerLost,
  kDiedAtShelf,
  kRefused,
  kCount,
};
const char* CoverName(Cover cover);

class World {
 public:
  World(uint64_t seed, size_t nodes, bool trace);

  // True time, which no process sees; processes see their machine's clock.
  Tick now() const { return now_; }
  SimClock* clock(NodeId node) { return &clocks_[node]; }
  Random& random() { return random_; }
  bool tracing() const { return trace_; }
  // Prints a line of the trace.
  void Trace(NodeId node, const std::string& text) const;

  // Runs `action` after `delay`, unless the process of `node` has ended by then. While the process
  // is paused its events wait.
  void After(Tick delay, NodeId node, EventKind kind, std::function<void()> action) {
    AfterInLife(delay, node, Life(node), kind, std::move(action));
  }
  // The same for a process that is known by its life.
  void AfterInLife(Tick delay, NodeId node, uint64_t life, EventKind kind,
                   std::function<void()> action);

  // Runs the next event. False when there is none or the run has stopped.
  bool Step();
  // Runs events until `done` is true. False when none is left before.
  bool RunUntil(const std::function<bool()>& done);
  // The present task, of a process of `node`, takes `duration` in its middle: events due meanwhile
  // happen inside this call. A pause of the node prolongs it. The end of the process ends it.
  void GiveWay(Tick duration, NodeId node);
  // Whether the present task may give way: it runs on a fiber, which nothing waits for.
  static bool may_give_way();
  // Called before an event of a node runs; false: the event does not happen.
  void SetGate(std::function<bool(NodeId)> gate) { gate_ = std::move(gate); }

  // Lives begin at 1; ending one drops the process' events.
  uint64_t Life(NodeId node) const { return node == kNobody ? 0 : nodes_[node].life; }
  void EndLife(NodeId node);
  void Pause(NodeId node);
  void Resume(NodeId node);
  bool paused(NodeId node) const { return nodes_[node].paused; }

  // Something that must never happen has happened. The first one counts and ends the run.
  void Red(const std::string& what);
  // The run ends well.
  void Stop() { stopped_ = true; }
  bool stopped() const { return stopped_; }
  const std::string& red() const { return red_; }

  void Met(Cover cover) { ++met_[static_cast<size_t>(cover)]; }
  // Whose event this is.
  NodeId present_node() const { return present_node_; }
  // Who looks at a process of the node when shipped code says that a round is decided or over.
  void SetObserver(NodeId node, std::function<void(Probe)> observer) {
    nodes_[node].observer = std::move(observer);
  }
  void Observe(NodeId node, Probe probe) const {
    if (nodes_[node].observer) nodes_[node].observer(probe);
  }
  const std::array<uint64_t, static_cast<size_t>(Cover::kCount)>& met() const { return met_; }

  // Folds a value into the hash of the run.
  void Note(uint64_t value) { hash_ = Mix(hash_ ^ value); }
  uint64_t hash() const { return hash_; }
  uint64_t events() const { return events_; }

 private:
  struct Event {
    NodeId node = kNobody;
    uint64_t life = 0;
    EventKind kind = EventKind::kTimer;
    std::function<void()> action;
  };
  struct Key {
    Tick time = 0;
    uint64_t sequence = 0;
    uint32_t index = 0;  // into events
    bool operator>(const Key& other) const {
      return time != other.time ? time > other.time : sequence > other.sequence;
    }
  };
  struct Node {
    uint64_t life = 1;
    bool paused = false;
    std::vector<Event> waiting;  // of a paused process, in order
    std::function<void(Probe)> observer;
  };
  void Push(Tick time, Event event);

  const bool trace_;
  Random random_;
  Tick now_ = 0;
  uint64_t sequence_ = 0;
  uint64_t events_ = 0;
  uint64_t hash_ = 0;
  bool stopped_ = false;
  NodeId present_node_ = kNobody;
  std::string red_;
  std::array<uint64_t, static_cast<size_t>(Cover::kCount)> met_{};
  std::vector<Key> heap_;
  std::vector<Event> slab_;
  std::vector<uint32_t> free_;
  std::vector<Node> nodes_;
  std::vector<SimClock> clocks_;  // of each node's machine
  std::function<bool(NodeId)> gate_;
};

}  // namespace ballast::sim
