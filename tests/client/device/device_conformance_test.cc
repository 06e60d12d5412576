// The behaviour of every Device: the host's, the hostile one, and CUDA's over a stand-in for the
// CUDA runtime where nvcc exists. Also messages of the hostile one alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "client/device/cuda_device.h"
#include "client/device/host_device.h"
#include "client/device/pack.h"
#include "client/device/pipeline.h"
#include "tests/client/device/hostile_device.h"

namespace ballast::device {
namespace {

using Make = std::function<std::unique_ptr<Device>()>;

struct Backend {
  const char* name;
  Make make;
};

void PrintTo(const Backend& backend, std::ostream* os) { *os << backend.name; }

Backend Hostile(const char* name, uint32_t seed) {
  return {name, [seed] { return std::make_unique<HostileDevice>(seed); }};
}

class DeviceConformance : public testing::TestWithParam<Backend> {
 protected:
  float* Floats(size_t count) {
    return static_cast<float*>(*device_->Allocate(MemoryKind::kDevice, count * sizeof(float)));
  }
  // Host memory in, through the pinned slab, to device memory.
  void Upload(const std::vector<float>& values, float* to) {
    const size_t bytes = values.size() * sizeof(float);
    ASSERT_TRUE(device_->HostWrites(slab_, bytes).ok());
    std::memcpy(slab_, values.data(), bytes);
    ASSERT_TRUE(device_->Copy(first_, to, slab_, bytes).ok());
    Finish(first_);
  }
  std::vector<float> Download(Stream stream, const float* from, size_t count) {
    EXPECT_TRUE(device_->Copy(stream, slab_, from, count * sizeof(float)).ok());
    Finish(stream);
    EXPECT_TRUE(device_->HostReads(slab_, count * sizeof(float)).ok());
    std::vector<float> values(count);
    std::memcpy(values.data(), slab_, count * sizeof(float));
    return values;
  }
  void Finish(Stream stream) {
    ASSERT_TRUE(device_->Record(stream, done_).ok());
    ASSERT_TRUE(device_->Synchronize(done_).ok());
  }

  std::unique_ptr<Device> device_ = GetParam().make();
  void* slab_ = *device_->Allocate(MemoryKind::kPinned, 4096);
  Stream first_ = *device_->NewStream(), second_ = *device_->NewStream();
  Event done_ = *device_->NewEvent(), ready_ = *device_->NewEvent();
};

TEST_P(DeviceConformance, RefusesASecondSlabAndNoBytes) {
  EXPECT_EQ(device_->Allocate(MemoryKind::kPinned, 64).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(device_->Allocate(MemoryKind::kDevice, 0).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(DeviceConformance, WorkOnOneStreamRunsInOrder) {
  float* a = Floats(3);
  float* b = Floats(3);
  Upload({1, 2, 3}, a);
  ASSERT_TRUE(device_->Copy(first_, b, a, 12).ok());
  ASSERT_TRUE(device_->Copy(first_, a + 1, b, 8).ok());
  EXPECT_EQ(Download(first_, a, 3), (std::vector<float>{1, 1, 2}));
}

TEST_P(DeviceConformance, AnEventOrdersTwoStreams) {
  float* a = Floats(2);
  float* b = Floats(2);
  Upload({4, 5}, a);
  ASSERT_TRUE(device_->Copy(first_, b, a, 8).ok());
  ASSERT_TRUE(device_->Record(first_, ready_).ok());
  ASSERT_TRUE(device_->Wait(second_, ready_).ok());
  EXPECT_EQ(Download(second_, b, 2), (std::vector<float>{4, 5}));
}

TEST_P(DeviceConformance, AnEventWithoutARecordIsDone) {
  EXPECT_TRUE(device_->Wait(first_, ready_).ok());
  EXPECT_TRUE(device_->Synchronize(ready_).ok());
  Finish(first_);
}

TEST_P(DeviceConformance, AHostThatLooksAtAnEventSeesItReached) {
  float* a = Floats(2);
  Upload({4, 5}, a);
  ASSERT_TRUE(device_->Copy(first_, slab_, a, 8).ok());
  ASSERT_TRUE(device_->Record(first_, ready_).ok());
  int looks = 0;
  while (!*device_->Reached(ready_)) ASSERT_LT(++looks, 100);
  ASSERT_TRUE(device_->HostReads(slab_, 8).ok());
  EXPECT_EQ(std::memcmp(slab_, std::vector<float>{4, 5}.data(), 8), 0);
  EXPECT_TRUE(device_->Handle(first_).ok());
}

TEST_P(DeviceConformance, PacksAndUnpacksPiecesWhoseListIsGone) {
  float* tensor = Floats(6);
  float* packed = Floats(4);
  Upload({1, 2, 3, 4, 5, 6}, tensor);
  {
    std::vector<Piece> pieces{{tensor, 1}, {tensor + 3, 0}, {tensor + 3, 3}};
    ASSERT_TRUE(device_->Pack(first_, {pieces, DType::kF32, DType::kF32, packed, 2.0f}).ok());
    pieces.assign(3, {nullptr, 0});
  }
  EXPECT_EQ(Download(first_, packed, 4), (std::vector<float>{2, 8, 10, 12}));
  const Piece back{tensor + 1, 4};
  ASSERT_TRUE(device_->Unpack(first_, {{&back, 1}, DType::kF32, DType::kF32, packed}).ok());
  EXPECT_EQ(Download(first_, tensor, 6), (std::vector<float>{1, 2, 8, 10, 12, 6}));
}

TEST_P(DeviceConformance, MeasuresTilesWithTheHostsBits) {
  std::vector<float> values(200);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 1.0f / (1.0f + static_cast<float>(i));
  values[70] = INFINITY;
  values[190] = values[191] = NAN;
  std::vector<TileFacts> want(4), got(4);
  MeasureOnHost({values.data(), values.size(), DType::kF32, 64, want.data()});
  float* memory = Floats(200);
  Upload(values, memory);
  auto* facts = static_cast<TileFacts*>(*device_->Allocate(MemoryKind::kDevice, 64));
  ASSERT_TRUE(device_->Measure(first_, {memory, 200, DType::kF32, 64, facts}).ok());
  ASSERT_TRUE(device_->Measure(first_, {memory, 0, DType::kF32, 64, nullptr}).ok());
  ASSERT_TRUE(device_->Copy(first_, slab_, facts, 64).ok());
  Finish(first_);
  std::memcpy(got.data(), slab_, 64);
  EXPECT_EQ(got[0].first, UINT64_MAX);
  EXPECT_EQ(BitsOf(got[0].sumsq), BitsOf(want[0].sumsq));
  EXPECT_EQ(got[1].first, 70u);
  EXPECT_EQ(got[1].nonfinite, 1u);
  EXPECT_EQ(got[2].nonfinite + got[3].nonfinite, 2u);
  EXPECT_EQ(std::min(got[2].first, got[3].first), 190u);
}

TEST_P(DeviceConformance, APipelineBringsWeightsInAndGradientsOut) {
  const std::unique_ptr<Device> device = GetParam().make();  // the other one has its slab
  const auto pipeline = *Pipeline::Create(device.get(), {4, 1024});
  const Stream framework = *device->NewStream();
  const Event seen = *device->NewEvent();
  constexpr size_t kCount = 200, kBytes = kCount * sizeof(float);
  const Piece tensor{*device->Allocate(MemoryKind::kDevice, kBytes), kCount};
  const Packing packing{{&tensor, 1}, DType::kF32, DType::kF32, nullptr};
  std::vector<float> values(kCount);
  for (int round = 0; round < 20; ++round) {
    for (size_t i = 0; i < kCount; ++i) values[i] = static_cast<float>(1000 * round) + i;
    const Pipeline::TakenBuffer taken = *pipeline->Take();
    std::memcpy(taken.bytes.data(), values.data(), kBytes);
    ASSERT_TRUE(device->Record(framework, seen).ok());
    ASSERT_TRUE(pipeline->Pull(taken.buffer, seen, packing).ok());
    ASSERT_TRUE(pipeline->HandOver(framework).ok());
    ASSERT_TRUE(device->Record(framework, seen).ok());
    const size_t buffer = *pipeline->Push(seen, packing);
    const std::span<const std::byte> out = *pipeline->Pushed(buffer);
    ASSERT_EQ(out.size(), kBytes);
    ASSERT_EQ(std::memcmp(out.data(), values.data(), kBytes), 0) << "round " << round;
    ASSERT_TRUE(pipeline->Release(buffer).ok());
  }
  EXPECT_TRUE(pipeline->Drain().ok());
}

TEST_P(DeviceConformance, KnowsItsOwnMemory) {
  const bool host = dynamic_cast<HostDevice*>(device_.get()) != nullptr;
  const float* memory = Floats(2);
  EXPECT_EQ(*device_->Holds(memory), !host);
  EXPECT_EQ(*device_->Holds(memory + 1), !host);
  EXPECT_FALSE(*device_->Holds(slab_));
  const float here = 0;
  EXPECT_FALSE(*device_->Holds(&here));
}

TEST_P(DeviceConformance, RefusesATypeThatIsNone) {
  const Measurement odd{slab_, 1, DType::kF32, 65, nullptr};
  EXPECT_EQ(device_->Measure(first_, odd).code(), absl::StatusCode::kInvalidArgument);
  const Packing none{{}, kNoDType, DType::kF32, slab_};
  EXPECT_EQ(device_->Pack(first_, none).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(device_->Unpack(first_, none).code(), absl::StatusCode::kInvalidArgument);
}

#ifdef BALLAST_CUDA_LIBRARY
// A shared object of this build, or the one of the GPU kit, where there is no build: `name` in the
// folder that the variable gives.
std::string Placed(const char* variable, const char* name, const char* built) {
  const char* kit = std::getenv(variable);
  return kit == nullptr ? built : kit + std::string(name);
}

// The CUDA part itself, where a GPU is.
absl::StatusOr<std::shared_ptr<const CudaLibrary>> RealCuda() {
  auto library =
      CudaLibrary::Open(Placed("BALLAST_KIT_LIB", "/libballast_cuda.so", BALLAST_CUDA_LIBRARY));
  if (!library.ok()) return library;
  const auto devices = (*library)->DeviceCount();
  if (!devices.ok()) return devices.status();
  return library;
}
#endif

std::vector<Backend> Backends() {
  std::vector<Backend> backends{{"host", [] { return std::make_unique<HostDevice>(); }},
                                Hostile("hostile_late", 0),
                                Hostile("hostile_mixed", 1),
                                Hostile("hostile_early", 3)};
#ifdef BALLAST_CUDA_STANDIN
  const std::string standin = Placed("BALLAST_KIT_STANDIN", "", BALLAST_CUDA_STANDIN);
  backends.push_back({"cuda_over_a_standin", [standin] {
                        return *CudaDevice::Create(*CudaLibrary::Open(standin), 1, nullptr);
                      }});
#endif
#ifdef BALLAST_CUDA_LIBRARY
  if (auto real = RealCuda(); real.ok()) {
    backends.push_back({"cuda", [] { return *CudaDevice::Create(*RealCuda(), 0, nullptr); }});
  }
#endif
  return backends;
}

#ifdef BALLAST_CUDA_LIBRARY
// Its text says to ctest that there was nothing to run.
TEST(Gpu, IsThere) {
  if (auto real = RealCuda(); !real.ok()) GTEST_SKIP() << "no GPU: " << real.status();
}
#endif

INSTANTIATE_TEST_SUITE_P(All, DeviceConformance, testing::ValuesIn(Backends()),
                         [](const auto& tested) { return tested.param.name; });

TEST(HostileDevice, WithoutAWaitTheHostSeesPoisonAndAnError) {
  HostileDevice device(0);
  auto* slab = static_cast<std::byte*>(*device.Allocate(MemoryKind::kPinned, 8));
  auto* memory = static_cast<std::byte*>(*device.Allocate(MemoryKind::kDevice, 8));
  const Stream stream = *device.NewStream();
  std::memset(slab, 0, 8);
  ASSERT_TRUE(device.Copy(stream, slab, memory, 8).ok());
  EXPECT_EQ(slab[0], std::byte{0xA5});
  EXPECT_EQ(device.HostReads(slab, 8).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(device.HostWrites(slab + 7, 1).code(), absl::StatusCode::kFailedPrecondition);
  device.RunAll();
  EXPECT_TRUE(device.HostReads(slab, 8).ok());
}

TEST(Pipeline, RefusesBadSizesAndSaysSo) {
  for (const PipelineConfig& config : {PipelineConfig{0, 64}, PipelineConfig{1, 0},
                                       PipelineConfig{1, 65}, PipelineConfig{SIZE_MAX, 64}}) {
    HostDevice device;
    EXPECT_EQ(Pipeline::Create(&device, config).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  HostDevice device;
  auto pipeline = *Pipeline::Create(&device, {1, 64});
  std::vector<float> tensor(17);
  const Event ready = *device.NewEvent();
  const Piece large{tensor.data(), 17}, fits{tensor.data(), 16};
  EXPECT_EQ(pipeline->Push(ready, {{&large, 1}, DType::kF32, DType::kF32}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(pipeline->Push(ready, {{&large, 1}, DType::kF32, DType::kBF16}).ok());
  EXPECT_EQ(pipeline->Push(ready, {{&fits, 1}, DType::kF32, DType::kF32}).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(pipeline->Take().status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace ballast::device
