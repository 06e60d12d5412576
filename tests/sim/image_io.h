// SimImageIo: the ImageIo of JobStorage::MakeRoundLog with its threads replaced by events: reads
// and writes of different extents end in any order, and a process can end between any two of them.
// While a flush is under way the other threads go on: within it, before or after the medium has
// taken what was written, other operations run, also flushes, which end before the one around them.
// What counts as flushed is compared with what the medium has taken.
// Comes from: SimRoundLog, for a tier on NVMe. Goes to: ImageFile. Thread safety: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "server/durability/image_file.h"
#include "server/durability/image_io.h"
#include "tests/sim/disk.h"
#include "tests/sim/mutants.h"
#include "tests/sim/swarm.h"
#include "tests/sim/world.h"

namespace ballast::sim {

class SimImageIo final : public server::ImageIo {
 public:
  struct Deps {
    World* world = nullptr;
    const Pace* pace = nullptr;
    SimDisk* disk = nullptr;
    NodeId node = kNobody;
    Mutant mutant = Mutant::kNone;
    bool power = true;         // the job's level: flushes reach the medium
    bool overlapping = false;  // flushes overlap with other operations
  };
  // `slots` outlives it. `flushed` runs after every flush.
  SimImageIo(const Deps& deps, server::ImageFile* images, std::function<void()> flushed)
      : deps_(deps),
        life_(deps.world->Life(deps.node)),
        images_(images),
        flushed_(std::move(flushed)) {
    if (deps_.overlapping) deps_.disk->SetBesideImageSync([this](bool) { RunBeside(); });
  }

  void Read(uint32_t extent, void* to, Done done) override;
  void Write(server::ExtentImage image, Done done) override;
  void Flush(Done done) override;

  // As ImageFile's.
  uint64_t Flushed(uint32_t extent) const;
  // Nothing is under way.
  bool idle() const { return under_way_ == 0; }

 private:
  struct Operation {
    std::function<absl::Status()> work;
    Done done;
  };
  void Run(uint64_t number);
  // As another thread than that of the flush that is under way.
  void RunBeside();
  void CheckFlushed() const;
  void Later(Tick full, std::function<absl::Status()> work, Done done);
  absl::Status WriteNow(const server::ExtentImage& image);
  absl::Status FlushNow();

  const Deps deps_;
  const uint64_t life_;
  server::ImageFile* const images_;
  const std::function<void()> flushed_;
  size_t under_way_ = 0;
  uint64_t last_number_ = 0;
  std::map<uint64_t, Operation> waiting_;  // by number; not begun
  int flushing_ = 0;
  // The disk's operations when that version of that extent had been written.
  std::map<std::pair<uint32_t, uint64_t>, uint64_t> written_;
  std::map<uint32_t, uint64_t> newest_;   // version by extent
  std::map<uint32_t, uint64_t> counted_;  // for a mutant: version by extent
};

}  // namespace ballast::sim
