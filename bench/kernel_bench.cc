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

#include "bench/harness.h"
#include "bench/kernel_roofline.h"
#include "common/base/status_macros.h"
#include "common/io/arena.h"
#include "server/optim/dispatch.h"
#include "server/optim/scalars.h"
#include "server/tier/tile_layout.h"

namespace ballast::bench {
namespace {

constexpr size_t kTileElements = 65536;
constexpr size_t kPlanes = 3;
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

class KernelBench {
 public:
  // RESOURCE_EXHAUSTED when memory is short.
  static absl::StatusOr<std::unique_ptr<KernelBench>> Create(size_t tiles, simd::Isa isa) {
    std::unique_ptr<KernelBench> bench(new KernelBench(tiles, isa));
    BALLAST_RETURN_IF_ERROR(bench->Allocate());
    return bench;
  }

  simd::Isa isa() const { return isa_; }

  void Fill(size_t begin, size_t end) {
    for (size_t tile = begin; tile < end; ++tile) {
      Random random(tile + 1);
      for (size_t i = 0; i < kTileElements; ++i) {
        Plane(tile, 0)[i] = 0.1f * random.Next();
        Plane(tile, 1)[i] = 1e-3f * random.Next();
        const float root = 1e-3f * random.Next();
        Plane(tile, 2)[i] = root * root + 1e-12f;
        grad_[tile * kTileElements + i] =
            static_cast<uint16_t>(std::bit_cast<uint32_t>(1e-2f * random.Next()) >> 16);
        weight_[tile * kTileElements + i] = 0;
        wide_grad_[tile * kTileElements + i] = 0.0f;
      }
    }
  }

  void Run(Variant variant, size_t begin, size_t end) {
    if (variant == kPasses) {
      RunPasses(begin, end);
      return;
    }
    for (size_t tile = begin; tile < end; ++tile) {
      const size_t first = tile * kTileElements;
      if (variant == kRoofline) {
        roofline_(Plane(tile, 0), Plane(tile, 1), Plane(tile, 2), grad_ + first, weight_ + first,
                  kTileElements);
      } else {
        Step(tile, DType::kBF16, grad_ + first, weight_ + first, kScale);
      }
    }
  }

  // Elements of p, m, v or weight that differ from the scalar kernel's after one step of `tile`.
  uint64_t StepAndCompare(size_t tile) {
    std::vector<float> planes[kPlanes];
    for (size_t plane = 0; plane < kPlanes; ++plane) {
      planes[plane].assign(Plane(tile, plane), Plane(tile, plane) + kTileElements);
    }
    std::vector<uint16_t> weight(kTileElements);
    const uint16_t* grad = grad_ + tile * kTileElements;
    AdamWStep(optim::Kernels(simd::Isa::kScalar), DType::kBF16,
              DType::kBF16)({planes[0].data(), planes[1].data(), planes[2].data(), grad,
                             weight.data(), kTileElements, kScale, scalars_});
    Run(kFused, tile, tile + 1);
    uint64_t differing = 0;
    for (size_t i = 0; i < kTileElements; ++i) {
      bool same = weight[i] == weight_[tile * kTileElements + i];
      for (size_t plane = 0; plane < kPlanes; ++plane) {
        same = same && std::memcmp(&planes[plane][i], Plane(tile, plane) + i, sizeof(float)) == 0;
      }
      differing += !same;
    }
    return differing;
  }

 private:
  KernelBench(size_t tiles, simd::Isa isa)
      : tiles_(tiles), kernels_(optim::Kernels(isa)), isa_(isa) {
    switch (isa) {
      case simd::Isa::kScalar:
        roofline_ = RooflineSse2;
        scale_ = ScaleSse2;
        break;
      case simd::Isa::kAvx2:
        roofline_ = RooflineAvx2;
        scale_ = ScaleAvx2;
        break;
      case simd::Isa::kAvx512:
        roofline_ = RooflineAvx512;
        scale_ = ScaleAvx512;
        break;
    }
  }

  absl::Status Allocate() {
    const size_t count = tiles_ * kTileElements;
    const size_t floats = tier::StateFloats(count, kTileElements, kPlanes);
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

  float* Plane(size_t tile, size_t plane) const {
    return state_ + tier::ArrayOffset(tiles_ * kTileElements, kTileElements, kPlanes, tile, plane);
  }

  void Step(size_t tile, DType grad_dtype, const void* grad, void* weight, float scale) {
    AdamWStep(kernels_, grad_dtype, DType::kBF16)({Plane(tile, 0), Plane(tile, 1), Plane(tile, 2),
                                                   grad, weight, kTileElements, scale, scalars_});
  }

  // The same work in torch's four passes over memory, vectorised like the fused one.
  void RunPasses(size_t begin, size_t end) {
    const size_t first = begin * kTileElements;
    const size_t count = (end - begin) * kTileElements;
    optim::Upcast(kernels_, DType::kBF16)(grad_ + first, wide_grad_ + first, count);
    scale_(wide_grad_ + first, kScale, count);
    for (size_t tile = begin; tile < end; ++tile) {
      Step(tile, DType::kF32, wide_grad_ + tile * kTileElements, nullptr, 1.0f);
    }
    for (size_t tile = begin; tile < end; ++tile) {
      optim::Downcast(kernels_, DType::kBF16)(Plane(tile, 0), weight_ + tile * kTileElements,
                                              kTileElements);
    }
  }

  size_t tiles_;
  const optim::KernelTable& kernels_;
  simd::Isa isa_;
  RooflineFn roofline_ = nullptr;
  ScaleFn scale_ = nullptr;
  const optim::AdamWScalars scalars_ = optim::MakeAdamWScalars(1e-4, 0.9, 0.999, 1e-8, 0.01, 10);
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

// A bench over `tiles` tiles of random data with the kernels of `isa` ("" for the best). Null when
// the instruction set is unknown or memory is short; the reason then stands on stderr.
KernelBench* kernel_bench_create(size_t tiles, const char* isa, int threads) {
  const auto chosen = ballast::simd::ChooseIsa(isa);
  if (!chosen.ok()) {
    std::fprintf(stderr, "%s\n", std::string(chosen.status().message()).c_str());
    return nullptr;
  }
  auto bench = ballast::bench::KernelBench::Create(tiles, *chosen);
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

// One step of the kernel on the caller's arrays of `count` elements, for the comparison of bits.
void kernel_bench_step(const KernelBench* bench, float* p, float* m, float* v, const uint16_t* grad,
                       uint16_t* weight, size_t count, float scale, double lr, double beta1,
                       double beta2, double eps, double weight_decay, uint64_t step) {
  AdamWStep(ballast::optim::Kernels(bench->isa()), ballast::DType::kBF16, ballast::DType::kBF16)(
      {p, m, v, grad, weight, count, scale,
       ballast::optim::MakeAdamWScalars(lr, beta1, beta2, eps, weight_decay, step)});
}

}  // extern "C"
