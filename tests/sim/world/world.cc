#include "tests/sim/world/world.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "tests/sim/world/fiber.h"

namespace ballast::sim {

namespace {

constexpr std::array<const char*, static_cast<size_t>(Cover::kCount)> kNames = {
    "skipped_round",
    "untouched_extent",
    "log_full",
    "segment_reused",
    "extent_ahead",
    "replay",
    "restored_prepared",
    "restored_gradient",
    "init_again",
    "step_waits",
    "meeting_opened",
    "meeting_timed_out",
    "meeting_stale",
    "meeting_given_up",
    "meeting_older",
    "meeting_conflict",
    "rank_late",
    "rank_wrong",
    "last_round_again",
    "attach_waits",
    "vote_from_answer",
    "duplicate_frame",
    "out_of_window",
    "bad_checksum",
    "died_in_disk",
    "seal_waits",
    "adopt_waits",
    "replaced",
    "other_world",
    "init_dropped",
    "woken",
    "end_at_rest",
    "change_taken_up",
    "begun_again",
    "begun_with_fewer",
    "fenced",
    "upload",
    "state_plane",
    "other_optimizer",
    "scaled_skip",
    "scheduled",
    "master_alone",
    "four_arrays",
    "reduced_gradients",
    "new_contributor",
    "scattered_gradients",
    "dealt_anew",
    "old_extent_saved",
    "extent_loaded",
    "extent_written_back",
    "flushes_overlap",
    "wall_clock_set",
    "clock_leapt",
    "server_killed",
    "power_lost",
    "end_in_change",
    "end_in_record",
    "end_sealed",
    "unsynced_bytes_at_power_loss",
    "unsynced_names_at_power_loss",
    "stream_broke",
    "call_lost",
    "caller_hung_up",
    "home_named",
    "home_away",
    "home_asked",
    "call_repeated",
    "message_late",
    "link_cut",
    "server_paused",
    "trainer_paused",
    "straggler",
    "write_failed",
    "sync_failed",
    "storage_failed",
    "full_disk",
    "bits_rotted",
    "file_vanished",
    "write_lost",
    "write_misdirected",
    "stray",
    "frame_damaged",
    "trainer_killed",
    "trainer_hung",
    "trainer_left",
    "trainer_joined",
    "snapshot_taken",
    "rounds_beside_capture",
    "end_in_snapshot",
    "hold_gave_way",
    "snapshot_given_up",
    "snapshot_removed",
    "snapshot_of_resting",
    "shelf_power_lost",
    "died_at_shelf",
    "refused"};

}  // namespace

const char* CoverName(Cover cover) { return kNames[static_cast<size_t>(cover)]; }

World::World(uint64_t seed, size_t nodes, bool trace)
    : trace_(trace), random_(seed), nodes_(nodes) {
  for (NodeId node = 0; node < nodes; ++node) clocks_.emplace_back(this, node);
}

void World::Trace(NodeId node, const std::string& text) const {
  const std::string who = node == kNobody ? std::string("world") : "node " + std::to_string(node);
  std::printf("%12.6f ms  %-7s  %s\n", static_cast<double>(now_) / 1e6, who.c_str(), text.c_str());
}

void World::Push(Tick time, Event event) {
  uint32_t index = 0;
  if (free_.empty()) {
    index = static_cast<uint32_t>(slab_.size());
    slab_.push_back(std::move(event));
  } else {
    index = free_.back();
    free_.pop_back();
    slab_[index] = std::move(event);
  }
  heap_.push_back({time, sequence_++, index});
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
}

void World::AfterInLife(Tick delay, NodeId node, uint64_t life, EventKind kind,
                        std::function<void()> action) {
  Push(now_ + delay, {node, life, kind, std::move(action)});
}

bool World::Step() {
  if (stopped_ || heap_.empty()) return false;
  std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
  const Key key = heap_.back();
  heap_.pop_back();
  Event event = std::move(slab_[key.index]);
  slab_[key.index] = Event();
  free_.push_back(key.index);
  now_ = key.time;
  if (event.node != kNobody) {
    Node& node = nodes_[event.node];
    if (event.life != node.life) return true;  // Its process is gone.
    if (node.paused) {
      node.waiting.push_back(std::move(event));
      return true;
    }
  }
  ++events_;
  Note(key.time);
  Note(uint64_t{event.node} << 8 | static_cast<uint64_t>(event.kind));
  if (event.node != kNobody && gate_ && !gate_(event.node)) return true;
  const NodeId outer_node = std::exchange(present_node_, event.node);
  event.action();
  present_node_ = outer_node;
  return true;
}

bool World::RunUntil(const std::function<bool()>& done) {
  while (!done()) {
    if (!Step()) return false;
  }
  return true;
}

void World::GiveWay(Tick duration, NodeId node) {
  After(duration, node, EventKind::kDisk, [fiber = Fiber::Current()->shared_from_this()] {
    if (!fiber->ended()) fiber->Resume();
  });
  Fiber::Current()->Pause();
}

bool World::may_give_way() { return Fiber::Current() != nullptr && Fiber::Current()->may_pause(); }

void World::EndLife(NodeId node) {
  ++nodes_[node].life;
  nodes_[node].paused = false;
  nodes_[node].waiting.clear();
}

void World::Pause(NodeId node) { nodes_[node].paused = true; }

void World::Resume(NodeId node) {
  if (!nodes_[node].paused) return;
  nodes_[node].paused = false;
  for (Event& event : std::exchange(nodes_[node].waiting, {})) Push(now_, std::move(event));
}

void World::Red(const std::string& what) {
  if (!red_.empty()) return;
  red_ = what;
  stopped_ = true;
  if (trace_) Trace(kNobody, "RED: " + what);
}

}  // namespace ballast::sim
