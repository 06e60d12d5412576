// SnapshotShelf: the directory of snapshots that all servers share, on a disk of its own that may
// lose its power, and the rule for its snapshots: an acknowledged one is found, whole and of one
// round, until it is removed.
// Comes from: the simulation. Goes to: servers (their part of it), the oracle.
// Thread safety: one thread.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "common/io/memory_disk.h"
#include "server/snapshot/store.h"
#include "tests/sim/oracle.h"
#include "tests/sim/swarm.h"
#include "tests/sim/world/world.h"

namespace ballast::sim {

inline constexpr char kShelfRoot[] = "/snapshots";

class SnapshotShelf {
 public:
  SnapshotShelf(World* world, const Swarm* swarm, Oracle* oracle, const server::JobPlan* plan,
                const Layout* layout)
      : world_(world), swarm_(swarm), oracle_(oracle), plan_(plan), layout_(layout) {}

  MemoryDisk* disk() { return &disk_; }
  void LosePower();

  // The home is taking one, or has ended meanwhile or given up.
  void OnTaking(bool taking) { being_taken_ = taking; }
  bool being_taken() const { return being_taken_; }
  // Of the snapshot of that name: its manifest, or its end, may be on the disk from now on; it is
  // there for good; nothing of it is left.
  void OnDoubtful(const std::string& name);
  void OnTaken(const std::string& name);
  void OnGone(const std::string& name);
  const std::set<std::string>& taken() const { return taken_; }

  // Names are used once. At the end the home begins none but those it is asked for.
  uint32_t NextNumber() { return ++begun_; }
  uint32_t begun() const { return begun_; }
  void BeginNoMore() { no_more_ = true; }
  bool no_more() const { return no_more_; }

  // Reads all there are and compares them. `cleared`: the home has removed what nobody has taken.
  void Check(bool cleared);

 private:
  server::SnapshotStore Reader() {
    return server::SnapshotStore(&disk_, kShelfRoot, plan_->servers.front(), "reader");
  }
  bool CheckOne(const server::SnapshotStore& store, const server::SnapshotManifest& manifest);

  World* const world_;
  const Swarm* const swarm_;
  Oracle* const oracle_;
  const server::JobPlan* const plan_;
  const Layout* const layout_;
  MemoryDisk disk_;
  std::set<std::string> taken_;
  std::set<std::string> doubtful_;
  bool being_taken_ = false;
  bool no_more_ = false;
  uint32_t begun_ = 0;
};

}  // namespace ballast::sim
