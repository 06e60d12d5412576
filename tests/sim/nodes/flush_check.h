// FlushCheck: checks that data counted as flushed by a job's images is on the medium.
// Comes from: SimServer, after every task of a disk's thread. Goes to: World::Red.
// Thread safety: one thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "server/durability/job_storage.h"
#include "tests/sim/world/disk.h"
#include "tests/sim/world/world.h"

namespace ballast::sim {

class FlushCheck {
 public:
  // The arguments outlive this.
  FlushCheck(World* world, SimDisk* disk, const server::StorageOptions* options)
      : world_(world), disk_(disk), options_(options) {}

  // The images that a process uses from now on, which lie at `path`; null: none.
  void Watch(const server::ImageFile* images, std::string path) {
    images_ = images;
    path_ = std::move(path);
    checked_.clear();
  }
  void Check();

 private:
  void CheckExtent(const server::ImageShape& shape, uint64_t version,
                   const std::array<uint64_t, 2>& places);

  World* const world_;
  SimDisk* const disk_;
  const server::StorageOptions* const options_;
  std::string path_;
  const server::ImageFile* images_ = nullptr;
  std::map<uint32_t, uint64_t> checked_;  // flushed version by extent
};

}  // namespace ballast::sim
