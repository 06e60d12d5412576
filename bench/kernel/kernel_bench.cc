// The optimizer kernels on tens of millions of parameters, for the script of the same name, which
// loads this file's C interface: it owns the data, the threads and the clock; the script alternates
// it with torch and judges the ratios.
// Comes from: bench/kernel_bench (ctypes). Goes to: server/optim. Thread safety: one caller at a
// time per KernelBench.
#include <algorithm>
#include <barrier>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/kernel/kernel_roofline.h"
#include "bench/parts/harness.h"
#include "bench/parts/kind_step.h"
#include "common/base/status_macros.h"
#include "common/io/arena.h"
#include "server/optim/dispatch.h"
#include "server/tier/tile_layout.h"

namespace ballast::bench {
namespace {

constexpr size_t kTileElements = kKindTileElements;
constexpr float kScale = 0.5f;

// xorshift64*: fast, and good enough for mantissas.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}
  // Uniform in [-1, 1).
  float Next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return static_cast<float>(static_cast<int32_t>((state_ * 0x2545F4914F6CDD1Du) >> 32)) *
           0x1p-31f;
  }

 private:
  uint64_t state_;
};

// The three ways of doing the same work, and the yardstick.
enum Variant : int { kFused = 0, kRoofline = 1, kPasses = 2 };

const Yardsticks& YardsticksOf(simd::Isa isa) {
  switch (isa) {
    case simd::Isa::kAvx2:
      return kAvx2Yardsticks;
    case simd::Isa::kAvx512:
      return kAvx512Yardsticks;
    case simd::Isa::kScalar:
      break;
  }
  return kSse2Yardsticks;
}

class KernelBench {
 public:
  // RESOURCE_EXHAUSTED when memory is short.
  static absl::StatusOr<std::unique_ptr<KernelBench>> Create(const KindJob& job, size_t tiles,
                                                             simd::Isa isa) {
    std::unique_ptr<KernelBench> bench(new KernelBench(job, tiles, isa));
    BALLAST_RETURN_IF_ERROR(bench->Allocate());
    return bench;
  }

  simd::Isa isa() const { return isa_; }

  // Bytes read and written for each parameter, in all passes.
  size_t bytes_per_parameter() const {
    const size_t all = 8 * arrays_ + sizeof(uint16_t) * 2;
    return job_.row().passes == 1 ? all : all + 4 * arrays_ + sizeof(uint16_t);
  }

  void Fill(size_t begin, size_t end) {
    for (size_t tile = begin; tile < end; ++tile) {
      Random random(tile + 1);
      for (size_t i = 0; i < kTileElements; ++i) {
        Array(tile, 0)[i] = 0.1f * random.Next();
        if (arrays_ > 1) Array(tile, 1)[i] = 1e-3f * random.Next();
        for (size_t array = 2; array < arrays_; ++array) {
          const float root = 1e-3f * random.Next();
          Array(tile, array)[i] = root * root + 1e-12f;
        }
        if (job_.kind == OptimizerKind::kAdagrad) Array(tile, 1)[i] = 1e-4f;
        grad_[tile * kTileElements + i] =
            static_cast<uint16_t>(std::bit_cast<uint32_t>(1e-2f * random.Next()) >> 16);
        weight_[tile * kTileElements + i] = 0;
        wide_grad_[tile * kTileElements + i] = 0.0f;
      }
    }
  }

  void Run(Variant variant, size_t begin, size_t end) {
    switch (variant) {
      case kFused:
        StepTiles(begin, end, grad_, weight_);
        return;
      case kRoofline:
        RunYardstick(begin, end);
        return;
      case kPasses:
        RunPasses(begin, end);
        return;
    }
  }

  // Elements of the state or the weights that differ from the scalar kernel's after one step of
  // `tile`.
  uint64_t StepAndCompare(size_t tile) {
    std::vector<std::vector<float>> arrays;
    KindRun run = {.grad = grad_ + tile * kTileElements, .count = kTileElements, .scale = kScale};
    for (size_t array = 0; array < arrays_; ++array) {
      arrays.emplace_back(Array(tile, array), Array(tile, array) + kTileElements);
      run.state[array] = arrays.back().data();
    }
    std::vector<uint16_t> weight(kTileElements);
    run.weight = weight.data();
    StepTensor(optim::Kernels(simd::Isa::kScalar), job_, kStep, run);
    Run(kFused, tile, tile + 1);
    uint64_t differing = 0;
    for (size_t i = 0; i < kTileElements; ++i) {
      bool same = weight[i] == weight_[tile * kTileElements + i];
      for (size_t array = 0; array < arrays_; ++array) {
        same = same && std::memcmp(&arrays[array][i], Array(tile, array) + i, sizeof(float)) == 0;
      }
      differing += !same;
    }
    return differing;
  }

  const optim::KernelTable& kernels() const { return kernels_; }
  const KindJob& job() const { return job_; }

 private:
  static constexpr uint64_t kStep = 10;

  KernelBench(const KindJob& job, size_t tiles, simd::Isa isa)
      : job_(job),
        arrays_(job.Arrays()),
        tiles_(tiles),
        kernels_(optim::Kernels(isa)),
        yardsticks_(YardsticksOf(isa)),
        isa_(isa) {}

  absl::Status Allocate() {
    const size_t count = tiles_ * kTileElements;
    const size_t floats = tier::StateFloats(count, kTileElements, arrays_);
    BALLAST_ASSIGN_OR_RETURN(state_memory_, Arena::Create(floats * sizeof(float)));
    BALLAST_ASSIGN_OR_RETURN(grad_memory_, Arena::Create(count * sizeof(uint16_t)));
    BALLAST_ASSIGN_OR_RETURN(weight_memory_, Arena::Create(count * sizeof(uint16_t)));
    BALLAST_ASSIGN_OR_RETURN(wide_grad_memory_, Arena::Create(count * sizeof(float)));
    state_ = reinterpret_cast<float*>(state_memory_.data());
    grad_ = reinterpret_cast<uint16_t*>(grad_memory_.data());
    weight_ = reinterpret_cast<uint16_t*>(weight_memory_.data());
    wide_grad_ = reinterpret_cast<float*>(wide_grad_memory_.data());
    return absl::OkStatus();
  }

  float* Array(size_t tile, size_t array) const {
    return state_ + tier::ArrayOffset(tiles_ * kTileElements, kTileElements, arrays_, tile, array);
  }

  // The arguments of one tile; `grad` and `weight` begin at tile 0, and weight may be null.
  template <class T>
  KindRun TileRun(size_t tile, const T* grad, uint16_t* weight) const {
    KindRun run = {.grad = grad + tile * kTileElements,
                   .grad_dtype = sizeof(T) == 4 ? DType::kF32 : DType::kBF16,
                   .weight = weight ? weight + tile * kTileElements : nullptr,
                   .count = kTileElements,
                   .scale = sizeof(T) == 4 ? 1.0f : kScale};
    for (size_t array = 0; array < arrays_; ++array) run.state[array] = Array(tile, array);
    return run;
  }

  // One step of the tiles as one tensor: every pass over all of them.
  template <class T>
  void StepTiles(size_t begin, size_t end, const T* grad, uint16_t* weight) const {
    KindStepper stepper(kernels_, job_, kStep);
    for (uint32_t pass = 0; pass < job_.row().passes; ++pass) {
      for (size_t tile = begin; tile < end; ++tile) {
        stepper.StepTile(pass, TileRun(tile, grad, weight));
      }
    }
  }

  void RunYardstick(size_t begin, size_t end) const {
    for (uint32_t pass = 0; pass < job_.row().passes; ++pass) {
      const bool first_of_two = job_.row().passes == 2 && pass == 0;
      const RooflineFn body =
          first_of_two ? yardsticks_.first_of_two : yardsticks_.step[arrays_ - 1];
      for (size_t tile = begin; tile < end; ++tile) {
        const KindRun run = TileRun(tile, grad_, weight_);
        body(run.state, grad_ + tile * kTileElements, weight_ + tile * kTileElements,
             kTileElements);
      }
    }
  }

  // The same work in torch's four passes over memory, vectorised like the fused one.
  void RunPasses(size_t begin, size_t end) {
    const size_t first = begin * kTileElements;
    const size_t count = (end - begin) * kTileElements;
    optim::Upcast(kernels_, DType::kBF16)(grad_ + first, wide_grad_ + first, count);
    yardsticks_.scale(wide_grad_ + first, kScale, count);
    StepTiles(begin, end, wide_grad_, nullptr);
    for (size_t tile = begin; tile < end; ++tile) {
      optim::Downcast(kernels_, DType::kBF16)(Array(tile, 0), weight_ + tile * kTileElements,
                                              kTileElements);
    }
  }

  const KindJob job_;
  const size_t arrays_;
  size_t tiles_;
  const optim::KernelTable& kernels_;
  const Yardsticks& yardsticks_;
  simd::Isa isa_;
  Arena state_memory_, grad_memory_, weight_memory_, wide_grad_memory_;
  float* state_ = nullptr;
  uint16_t* grad_ = nullptr;
  uint16_t* weight_ = nullptr;
  float* wide_grad_ = nullptr;
};

// Runs `body(thread)` in `threads` threads, the caller being thread 0.
template <class Body>
void InThreads(int threads, const Body& body) {
  std::vector<std::thread> others;
  for (int thread = 1; thread < threads; ++thread) others.emplace_back(body, thread);
  body(0);
  for (std::thread& other : others) other.join();
}

}  // namespace
}  // namespace ballast::bench

using ballast::bench::KernelBench;

extern "C" {

// A bench of optimizer `kind` over `tiles` tiles of random data with the kernels of `isa` ("" for
// the best). `options` and `hyper` have a value for every entry of the kind's row. Null when the
// instruction set is unknown or memory is short; the reason is then on stderr.
KernelBench* kernel_bench_create(int kind, const double* options, const double* hyper, size_t tiles,
                                 const char* isa, int threads) {
  const auto chosen = ballast::simd::ChooseIsa(isa);
  if (!chosen.ok()) {
    std::fprintf(stderr, "%s\n", std::string(chosen.status().message()).c_str());
    return nullptr;
  }
  auto bench = ballast::bench::KernelBench::Create(
      ballast::bench::MakeKindJob(kind, options, hyper), tiles, *chosen);
  if (!bench.ok()) {
    std::fprintf(stderr, "%s\n", std::string(bench.status().message()).c_str());
    return nullptr;
  }
  ballast::bench::InThreads(threads, [&](int thread) {
    (*bench)->Fill(tiles * thread / threads, tiles * (thread + 1) / threads);
  });
  // The caller keeps it until the process ends.
  return bench->release();
}

const char* kernel_bench_isa(const KernelBench* bench) {
  return ballast::simd::IsaName(bench->isa());
}

// Elements that differ between kernel and scalar kernel after one step of `tile`.
uint64_t kernel_bench_verify(KernelBench* bench, size_t tile) {
  return bench->StepAndCompare(tile);
}

// One repetition of two variants (0 fused, 1 roofline, 2 four passes) over all tiles, alternating
// every `slice` tiles so that both see the same machine; b works half the data away from a, so that
// neither finds the other's tiles in the cache. Adds up seconds in out[0] and out[1].
void kernel_bench_compare(KernelBench* bench, int a, int b, int threads, size_t tiles, size_t slice,
                          double* out) {
  out[0] = out[1] = 0;
  std::barrier<> barrier(threads);
  const int variants[2] = {a, b};
  ballast::bench::InThreads(threads, [&](int thread) {
    for (size_t begin = 0; begin < tiles; begin += slice) {
      for (int turn = 0; turn < 2; ++turn) {
        const int which = (begin / slice + turn) % 2;
        const size_t first = (begin + (which ? tiles / slice / 2 * slice : 0)) % tiles;
        const size_t count = std::min(slice, tiles - first);
        barrier.arrive_and_wait();
        const double start = ballast::bench::Now();
        bench->Run(static_cast<ballast::bench::Variant>(variants[which]),
                   first + count * thread / threads, first + count * (thread + 1) / threads);
        barrier.arrive_and_wait();
        if (thread == 0) out[which] += ballast::bench::Now() - start;
      }
    }
  });
}

// Seconds of one run of one variant over all tiles.
double kernel_bench_run(KernelBench* bench, int variant, int threads, size_t tiles) {
  const double start = ballast::bench::Now();
  ballast::bench::InThreads(threads, [&](int thread) {
    bench->Run(static_cast<ballast::bench::Variant>(variant), tiles * thread / threads,
               tiles * (thread + 1) / threads);
  });
  return ballast::bench::Now() - start;
}

size_t kernel_bench_bytes_per_parameter(const KernelBench* bench) {
  return bench->bytes_per_parameter();
}

}  // extern "C"
