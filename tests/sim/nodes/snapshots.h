// SimSnapshots: the operator of snapshots at the job's home: now and then it has the shipped
// Snapshotter take one, or remove one. Comes from: SimServer with index 0. Goes to: SnapshotApi,
// the shelf's list. Thread safety: one thread.
#pragma once

#include <functional>
#include <string>

#include "server/operator/operator_calls.h"
#include "tests/sim/nodes/context.h"
#include "tests/sim/nodes/process.h"
#include "tests/sim/world/disk.h"

namespace ballast::sim {

class SimSnapshots {
 public:
  using Done = std::function<void(const absl::Status&)>;

  // `home` serves. It and `shelf`, its disk of the snapshots, outlive this.
  SimSnapshots(const Context& context, SimProcess* home, const SimDisk* shelf);

  // Takes one of that name. Errors: as SnapshotApi::CreateSnapshot.
  void Take(const std::string& name, const Done& done);
  // It can take one now.
  bool ready() const { return !busy_; }

 private:
  NodeId node() const { return home_->node(); }
  Random& random() const { return context_.world->random(); }
  server::SnapshotRequest Named(const std::string& name) const;
  void DoNext();
  void OnAnswer(const server::SnapshotInfo& info) const;
  void OnError(const std::string& name, const absl::Status& why, bool clean) const;
  void Remove(const std::string& name);

  const Context context_;
  SimProcess* const home_;
  const SimDisk* const shelf_;
  bool busy_ = false;
};

}  // namespace ballast::sim
