// Tensors: one value per element of every tensor of the job, as a training script holds it. The
// client reads and writes whole tensors, the reference knows extents. Comes from: SimTrainer. Goes
// to: SessionCore (lent memory), the oracle. Thread safety: one thread. Memory: owned here.
#pragma once

#include <cstdint>
#include <vector>

#include "common/tensor/layout.h"

namespace ballast::sim {

class Tensors {
 public:
  enum class Kind { kWire, kState };

  // Zeros, each element in its tensor's wire dtype or, for kState, in fp32. `layout` outlives this.
  Tensors(const Layout* layout, Kind kind);

  // The bytes of one extent.
  void Put(uint32_t extent, const std::vector<char>& bytes);
  std::vector<char> Get(uint32_t extent) const;

  void* data(uint32_t tensor) { return tensors_[tensor].data(); }
  std::vector<void*> pointers();

 private:
  size_t ElementBytes(uint32_t extent) const;

  const Layout* const layout_;
  const Kind kind_;
  std::vector<std::vector<char>> tensors_;
};

}  // namespace ballast::sim
