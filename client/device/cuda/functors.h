// The work of one thread of a kernel, as functors for two compilers: nvcc loops over them on the
// device (kernels.cu), g++ in tests on the host.
// Comes from: kernels.cu, and the tests' stand-in for the CUDA runtime. Goes to: device memory.
// Each element is read once and written once. No float is added out of order: the sum of squares
// is that of server/reduce, one thread per lane.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "client/device/cuda_abi.h"
#include "client/device/elements.h"

namespace ballast::device::cuda {

// Threads of one block, and elements that a block of Pack and Unpack takes in turn.
inline constexpr uint32_t kBlockThreads = 256;
inline constexpr uint64_t kChunkElements = 4096;

BALLAST_HOST_DEVICE inline uint64_t ChunkCount(const PieceRun& run) {
  return (run.end[run.pieces - 1] + kChunkElements - 1) / kChunkElements;
}

// One element as another type. Equal types at scale 1 keep their bits, NaN payloads included.
template <class From, class To>
BALLAST_HOST_DEVICE typename To::T Convert(typename From::T x, float scale) {
  if (scale == 1.0f) {
    if constexpr (std::is_same_v<From, To>) return x;
    return Cast<From, To>(x);
  }
  return Scale<From, To>(x, scale);
}

// The piece that holds element `index` of the run.
BALLAST_HOST_DEVICE inline uint32_t PieceOf(const PieceRun& run, uint64_t index) {
  uint32_t low = 0, high = run.pieces - 1;
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    if (run.end[middle] > index) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// Calls each(piece, index in the piece, index in the run) for the elements of one thread of a
// chunk: neighbouring threads take neighbouring elements.
template <class Each>
BALLAST_HOST_DEVICE void ForEachElement(const PieceRun& run, uint64_t chunk, uint32_t thread,
                                        const Each& each) {
  const uint64_t begin = chunk * kChunkElements + thread;
  const uint64_t all = run.end[run.pieces - 1];
  const uint64_t chunk_end = (chunk + 1) * kChunkElements;
  const uint64_t end = chunk_end < all ? chunk_end : all;
  if (begin >= end) return;
  uint32_t piece = PieceOf(run, begin);
  for (uint64_t i = begin; i < end; i += kBlockThreads) {
    while (run.end[piece] <= i) ++piece;
    each(piece, i - (piece == 0 ? 0 : run.end[piece - 1]), i);
  }
}

template <class Tensor, class Packed>
struct PackChunk {
  BALLAST_HOST_DEVICE static void Run(const PieceRun& run, uint64_t chunk, uint32_t thread) {
    ForEachElement(run, chunk, thread, [&run](uint32_t piece, uint64_t from, uint64_t to) {
      const auto* x = static_cast<const typename Tensor::T*>(run.data[piece]);
      static_cast<typename Packed::T*>(run.packed)[to] =
          Convert<Tensor, Packed>(x[from], run.scale);
    });
  }
};

template <class Tensor, class Packed>
struct UnpackChunk {
  BALLAST_HOST_DEVICE static void Run(const PieceRun& run, uint64_t chunk, uint32_t thread) {
    ForEachElement(run, chunk, thread, [&run](uint32_t piece, uint64_t to, uint64_t from) {
      const auto* x = static_cast<const typename Packed::T*>(run.packed);
      static_cast<typename Tensor::T*>(run.data[piece])[to] =
          Convert<Packed, Tensor>(x[from], 1.0f);
    });
  }
};

// Memory shared by a tile's lanes.
struct TileLanes {
  float sumsq[kNormLanes];
  uint32_t nonfinite[kNormLanes];
  uint64_t first[kNormLanes];
};

BALLAST_HOST_DEVICE inline uint64_t TileCount(const TileRun& run) {
  return (run.count + run.tile_elements - 1) / run.tile_elements;
}

// A tile in two steps with a barrier between them: each of kNormLanes threads measures its lane;
// then, for half = 32, 16, ... 1, with a barrier after each, threads below `half` fold.
template <class G>
struct MeasureTile {
  BALLAST_HOST_DEVICE static void Lane(const TileRun& run, uint64_t tile, uint32_t lane,
                                       TileLanes& lanes) {
    const uint64_t begin = tile * run.tile_elements;
    const uint64_t left = run.count - begin;
    const uint64_t count = left < run.tile_elements ? left : run.tile_elements;
    const auto* x = static_cast<const typename G::T*>(run.data) + begin;
    lanes.sumsq[lane] = LaneSumsq<G>(x, count, lane);
    NonfiniteElements found;
    for (uint64_t i = lane; i < count; i += kNormLanes) {
      if (!G::Finite(x[i])) found.Add(begin + i);
    }
    lanes.nonfinite[lane] = static_cast<uint32_t>(found.count);
    lanes.first[lane] = found.count > 0 ? found.first : UINT64_MAX;
  }

  BALLAST_HOST_DEVICE static void Fold(TileLanes& lanes, uint32_t half, uint32_t lane) {
    lanes.sumsq[lane] = lanes.sumsq[lane] + lanes.sumsq[lane + half];
    lanes.nonfinite[lane] += lanes.nonfinite[lane + half];
    if (lanes.first[lane + half] < lanes.first[lane]) lanes.first[lane] = lanes.first[lane + half];
  }

  BALLAST_HOST_DEVICE static void Store(const TileRun& run, uint64_t tile, const TileLanes& lanes) {
    run.facts[tile] = {lanes.sumsq[0], lanes.nonfinite[0], lanes.first[0]};
  }
};

}  // namespace ballast::device::cuda
