#include "bench/storage/tier_rig.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <future>
#include <numeric>
#include <thread>
#include <utility>

#include "bench/parts/harness.h"
#include "bench/parts/raw_disk.h"
#include "common/base/status_macros.h"
#include "common/io/file.h"
#include "server/optim/dispatch.h"
#include "server/optim/scalars.h"
#include "server/simd/isa.h"
#include "server/tier/dram_tier.h"
#include "server/tier/tile_layout.h"

namespace ballast::bench {
namespace {

constexpr uint32_t kTileElements = 65536;
constexpr uint32_t kArrays = 3;     // of an AdamW job
constexpr size_t kLoggedBytes = 2;  // of a bf16 gradient

int WorkerCount() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

void FillGradient(float* to, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] = static_cast<float>(i % 1009) * 1e-3f - 0.5f;
}

}  // namespace

// Of one sweep; lives until its last completion.
struct TierRig::Progress {
  std::vector<uint32_t> order;
  size_t next = 0;
  size_t under_way = 0;
  size_t left = 0;
  absl::Status status;
  server::ImageIo::Done done;
};

absl::StatusOr<std::unique_ptr<TierRig>> TierRig::Create(const RigOptions& options) {
  const uint64_t elements = uint64_t{options.extents} * options.extent_elements;
  BALLAST_ASSIGN_OR_RETURN(Layout layout, Layout::Build({{elements, DType::kF32, 0}}, kTileElements,
                                                        options.extent_elements));
  BALLAST_ASSIGN_OR_RETURN(std::unique_ptr<server::NvmeTier> tier,
                           server::NvmeTier::Create({.shape = {kTileElements, kArrays},
                                                     .extent_elements = options.extent_elements,
                                                     .buffers = options.buffers}));
  server::NvmeTier* const nvme = tier.get();
  server::ExtentStore store(std::move(tier), &optim::Kernels(simd::DetectIsa()));
  std::unique_ptr<TierRig> rig(new TierRig(options, nvme, std::move(store), std::move(layout)));
  BALLAST_RETURN_IF_ERROR(rig->Prepare());
  return rig;
}

TierRig::TierRig(const RigOptions& options, server::NvmeTier* nvme, server::ExtentStore store,
                 Layout layout)
    : options_(options),
      nvme_(nvme),
      store_(std::move(store)),
      layout_(std::move(layout)),
      order_(options.extents),
      executor_("sweep", 1),
      strand_(&executor_),
      workers_(WorkerCount()) {
  std::iota(order_.begin(), order_.end(), 0u);
}

TierRig::~TierRig() {
  log_.reset();
  executor_.Shutdown();
}

// Two images of each extent, and a log for the rig's writes of two rounds.
server::StorageOptions TierRig::Storage() const {
  server::StorageOptions storage;
  storage.images = {.job = 1, .tile_elements = kTileElements, .direct = true};
  for (uint32_t e = 0; e < options_.extents; ++e) {
    storage.shapes.push_back(
        {.extent = e, .elements = options_.extent_elements, .array_count = kArrays});
    storage.gradient_bytes.push_back(options_.log ? options_.extent_elements * kLoggedBytes
                                                  : size_t{kPageBytes});
  }
  storage.checkpoint_rounds = 2;
  return storage;
}

absl::Status TierRig::Prepare() {
  BALLAST_ASSIGN_OR_RETURN(
      auto made, server::JobStorage::Create(PosixFileSystem(), options_.directory, Storage()));
  log_ = server::JobStorage::MakeRoundLog(std::move(made), 0, ThreadSource::Get(),
                                          options_.tier_threads);
  const size_t bytes = size_t{options_.extent_elements} * sizeof(float);
  BALLAST_ASSIGN_OR_RETURN(gradient_, Arena::Create(bytes));
  // One for each extent in work: this output is never read.
  BALLAST_ASSIGN_OR_RETURN(weights_, Arena::Create(bytes * nvme_->sweep_depth()));
  FillGradient(reinterpret_cast<float*>(gradient_.data()), options_.extent_elements);
  scalars_ = optim::MakeScalars(OptimizerKind::kAdamW, Options{0, 0},
                                Hyper{1e-3, 0.9, 0.999, 1e-8, 0.01}, 1);
  by_tensor_ = {&scalars_};
  BALLAST_RETURN_IF_ERROR(store_.Add(layout_, order_));
  nvme_->Connect(
      log_->image_io(),
      [this](server::ImageIo::Done done) -> server::ImageIo::Done {
        return [this, done = std::move(done)](const absl::Status& status) {
          strand_.Post([done, status] { done(status); });
        };
      },
      [](const absl::Status&) {});
  return WriteFirstState();
}

absl::Status TierRig::WriteFirstState() {
  for (uint64_t version = 1; version <= 2; ++version) {
    version_ = version;
    BALLAST_RETURN_IF_ERROR(OnStrand([this](server::ImageIo::Done done) {
      nvme_->SetVersion(version_);
      const auto left = std::make_shared<size_t>(order_.size());
      for (const uint32_t extent : order_) {
        nvme_->Save(extent, false, [left, done](const absl::Status& status) {
          if (--*left == 0 || !status.ok()) done(status);
        });
      }
    }));
    BALLAST_RETURN_IF_ERROR(
        OnStrand([this](server::ImageIo::Done done) { nvme_->Flush(std::move(done)); }));
  }
  return absl::OkStatus();
}

absl::Status TierRig::OnStrand(const std::function<void(server::ImageIo::Done)>& task) {
  std::promise<absl::Status> promise;
  bool told = false;  // on the strand
  strand_.Post([&] {
    task([&](const absl::Status& status) {
      if (!std::exchange(told, true)) promise.set_value(status);
    });
  });
  return promise.get_future().get();
}

uint64_t TierRig::payload_bytes() const {
  return uint64_t{options_.extents} * options_.extent_elements * 3 * sizeof(float);
}

server::ExtentStep TierRig::StepTo(char* weights) const {
  return {.grad = gradient_.data(),
          .grad_dtype = DType::kF32,
          .weight = weights,
          .scale = 1,
          .scalars = &by_tensor_};
}

absl::StatusOr<double> TierRig::Sweep() {
  const double start = Now();
  if (options_.log) BALLAST_RETURN_IF_ERROR(LogGradients());
  const absl::Status swept = OnStrand([this](server::ImageIo::Done done) {
    const auto progress = std::make_shared<Progress>();
    progress->left = order_.size();
    progress->done = std::move(done);
    progress->order = nvme_->BeginSweep(order_);
    PumpSweep(progress);
  });
  BALLAST_RETURN_IF_ERROR(swept);
  BALLAST_RETURN_IF_ERROR(OnStrand([this](server::ImageIo::Done done) {
    nvme_->SetVersion(++version_);
    nvme_->Flush(std::move(done));
  }));
  return Now() - start;
}

// As a round does: all extents, then a vote, and one flush.
absl::Status TierRig::LogGradients() {
  for (const uint32_t extent : order_) {
    log_->AppendExtent({.at = {.epoch = 1,
                               .round = version_,
                               .extent = extent,
                               .dtype = DType::kBF16,
                               .sumsq = 1,
                               .bytes = options_.extent_elements * kLoggedBytes},
                        .data = gradient_.data(),
                        .owner = nullptr});
  }
  std::promise<absl::Status> promise;
  log_->Prepare({.epoch = 1, .round = version_},
                [&](const absl::Status& status) { promise.set_value(status); });
  const absl::Status status = promise.get_future().get();
  log_->AppendDecision({.epoch = 1, .round = version_});
  return status;
}

void TierRig::PumpSweep(const std::shared_ptr<Progress>& progress) {
  while (progress->next < progress->order.size() && progress->under_way < nvme_->sweep_depth()) {
    const uint32_t extent = progress->order[progress->next++];
    ++progress->under_way;
    nvme_->Acquire(extent, [this, progress, extent](const absl::Status& status) {
      if (status.ok()) {
        StepExtent(progress, extent);
      } else {
        progress->done(status);
      }
    });
  }
}

void TierRig::StepExtent(const std::shared_ptr<Progress>& progress, uint32_t extent) {
  workers_.Submit(
      server::TileCount(layout_, extent),
      [this, extent](size_t tile) {
        // Extents in work are neighbours.
        const size_t buffer = extent % nvme_->sweep_depth();
        char* const weights = weights_.data() + buffer * options_.extent_elements * sizeof(float);
        store_.StepTile(layout_, extent, static_cast<uint32_t>(tile), StepTo(weights));
      },
      [this, progress, extent] {
        strand_.Post([this, progress, extent] {
          --progress->under_way;
          nvme_->Release(extent, version_ + 1);
          if (--progress->left == 0) return progress->done(absl::OkStatus());
          PumpSweep(progress);
        });
      });
}

absl::StatusOr<bool> TierRig::Verify() {
  server::ExtentStore memory(server::MakeDramTier({kTileElements, kArrays}), store_.kernels());
  BALLAST_RETURN_IF_ERROR(memory.Add(layout_, {0}));
  // Versions 1 and 2 were only written.
  for (uint64_t step = 2; step < version_; ++step) {
    for (uint32_t t = 0; t < server::TileCount(layout_, 0); ++t) {
      memory.StepTile(layout_, 0, t, StepTo(weights_.data()));
    }
  }
  bool same = true;
  for (const uint32_t extent : order_) {
    const absl::Status read = OnStrand([&](server::ImageIo::Done done) {
      nvme_->Acquire(extent, [&, extent, done](const absl::Status& status) {
        if (status.ok()) {
          same = same && std::memcmp(nvme_->State(extent), memory.State(0),
                                     uint64_t{options_.extent_elements} * 12) == 0;
          nvme_->Release(extent, 0);
        }
        done(status);
      });
    });
    BALLAST_RETURN_IF_ERROR(read);
  }
  return same;
}

}  // namespace ballast::bench
