// The real objects of client/device/cuda on a stand-in for the CUDA runtime: bits against the loops
// on the host, launches, errors, and the release of resources. Then the real shared object.
#include "client/device/cuda_device.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/device/pack.h"
#include "tests/client/device/cuda_standin.h"

namespace ballast::device {
namespace {

using testing::HasSubstr;

constexpr int kOutOfMemory = 2, kIllegalAddress = 700, kInsufficientDriver = 35;

// The stand-in's functions, found by name.
struct Standin {
  template <class F>
  static F* Find(const char* name) {
    void* handle = dlopen(BALLAST_CUDA_STANDIN, RTLD_NOW | RTLD_NOLOAD);
    return reinterpret_cast<F*>(dlsym(handle, name));
  }
  decltype(standin_fail)* fail = Find<decltype(standin_fail)>("standin_fail");
  decltype(standin_reset)* reset = Find<decltype(standin_reset)>("standin_reset");
  decltype(standin_capture)* capture = Find<decltype(standin_capture)>("standin_capture");
  decltype(standin_claim)* claim = Find<decltype(standin_claim)>("standin_claim");
  decltype(standin_launches)* launches = Find<decltype(standin_launches)>("standin_launches");
  decltype(standin_alive)* alive = Find<decltype(standin_alive)>("standin_alive");
  decltype(standin_kernels)* kernels = Find<decltype(standin_kernels)>("standin_kernels");
};

class CudaOverAStandin : public testing::Test {
 protected:
  void SetUp() override { standin_.reset(); }
  std::unique_ptr<CudaDevice> Make(CudaDevice::KeepFn keep = nullptr) {
    return *CudaDevice::Create(library_, 1, std::move(keep));
  }

  std::shared_ptr<const CudaLibrary> library_ = *CudaLibrary::Open(BALLAST_CUDA_STANDIN);
  Standin standin_;
};

// Bytes of any values, NaN payloads, infinities and denormals among them.
std::vector<std::byte> RandomBytes(size_t bytes, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> values(bytes);
  for (auto& value : values) value = static_cast<std::byte>(random());
  for (size_t i = 0; i + 4 <= bytes; i += 28) {  // fp32 and 16-bit infinities and NaN
    const uint32_t special[] = {0x7F800000u, 0xFF80FF80u, 0x7FC07E01u, 0x7C007C00u, 0x00010001u};
    std::memcpy(&values[i], &special[i / 28 % 5], 4);
  }
  return values;
}

// Finite values of `dtype`, denormals among them: their sum of squares has bits to compare.
std::vector<std::byte> FiniteBytes(size_t bytes, DType dtype, uint32_t seed) {
  auto values = RandomBytes(bytes, seed);
  const size_t size = DTypeBytes(dtype);
  const uint8_t exponent = dtype == DType::kF16 ? 0x7B : 0x3F;  // no square overflows fp32
  for (size_t i = size - 1; i < bytes; i += size) {
    const auto high = std::to_integer<uint8_t>(values[i]);
    values[i] = static_cast<std::byte>(i / size % 9 == 0 ? 0 : high & (0x80 | exponent));
  }
  return values;
}

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

// Pieces of `count` elements in all, cut at random, each one element apart from the next.
std::vector<Piece> Cut(std::byte* data, size_t count, size_t element_bytes, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Piece> pieces;
  for (size_t at = 0; count > 0;) {
    const size_t some = std::min<size_t>(count, random() % 50);
    pieces.push_back({data + (at + pieces.size()) * element_bytes, some});
    at += some;
    count -= some;
  }
  return pieces;
}

TEST_F(CudaOverAStandin, EveryKernelIsRegistered) { EXPECT_EQ(standin_.kernels(), 21u); }

TEST_F(CudaOverAStandin, PackAndUnpackHaveTheHostsBits) {
  auto device = Make();
  const Stream stream = *device->NewStream();
  std::vector<size_t> counts{4095, 4096, 4097, 9000, 70000};
  for (size_t count = 0; count <= 130; ++count) counts.push_back(count);
  for (const DType tensor : kDTypes) {
    for (const DType packed : kDTypes) {
      for (const size_t count : counts) {
        for (const float scale : {1.0f, 0.3f}) {
          auto memory = RandomBytes((2 * count + 200) * 4, static_cast<uint32_t>(count));
          const auto pieces = Cut(memory.data() + DTypeBytes(tensor), count, DTypeBytes(tensor), 1);
          std::vector<std::byte> got(count * 4 + 8), want(count * 4 + 8);
          const size_t odd = DTypeBytes(packed);
          PackOnHost({pieces, tensor, packed, want.data() + odd, scale});
          ASSERT_TRUE(device->Pack(stream, {pieces, tensor, packed, got.data() + odd, scale}).ok());
          ASSERT_EQ(got, want) << DTypeName(tensor) << DTypeName(packed) << count << " " << scale;
          auto twin = memory;
          auto twins = pieces;
          for (Piece& piece : twins) {
            piece.data = twin.data() + (static_cast<std::byte*>(piece.data) - memory.data());
          }
          UnpackOnHost({twins, tensor, packed, want.data() + odd});
          ASSERT_TRUE(device->Unpack(stream, {pieces, tensor, packed, got.data() + odd}).ok());
          ASSERT_EQ(memory, twin) << DTypeName(tensor) << DTypeName(packed) << count;
        }
      }
    }
  }
}

TEST_F(CudaOverAStandin, ManyPiecesAreSomeLaunches) {
  auto device = Make();
  const Stream stream = *device->NewStream();
  std::vector<float> tensor(600, 1.0f), packed(600);
  std::vector<Piece> pieces;
  for (size_t i = 0; i < 300; ++i) pieces.push_back({&tensor[2 * i], i % 3 == 0 ? 0u : 1u});
  ASSERT_TRUE(device->Pack(stream, {pieces, DType::kF32, DType::kF32, packed.data()}).ok());
  EXPECT_EQ(standin_.launches(), 2);  // 200 pieces, 128 a launch
  EXPECT_EQ(packed[199], 1.0f);
  EXPECT_EQ(packed[200], 0.0f);
  ASSERT_TRUE(device->Pack(stream, {{}, DType::kF32, DType::kF32, packed.data()}).ok());
  EXPECT_EQ(standin_.launches(), 2);
}

TEST_F(CudaOverAStandin, FactsOfTilesHaveTheHostsBits) {
  auto device = Make();
  const Stream stream = *device->NewStream();
  for (const DType dtype : kDTypes) {
    std::vector<size_t> counts{1000, 9999};
    for (size_t count = 0; count <= 130; ++count) counts.push_back(count);
    for (size_t i = 0; i < 2 * counts.size(); ++i) {
      const size_t count = counts[i / 2], bytes = count * 4 + 8;
      const auto values = i % 2 == 0 ? RandomBytes(bytes, 5) : FiniteBytes(bytes, dtype, 5);
      const std::byte* data = values.data() + DTypeBytes(dtype);
      std::vector<TileFacts> want(count / 192 + 1), got(want.size());
      MeasureOnHost({data, count, dtype, 192, want.data()});
      ASSERT_TRUE(device->Measure(stream, {data, count, dtype, 192, got.data()}).ok());
      for (size_t tile = 0; tile * 192 < count; ++tile) {
        ASSERT_EQ(got[tile].nonfinite, want[tile].nonfinite);
        ASSERT_EQ(got[tile].first, want[tile].first);
        ASSERT_EQ(want[tile].nonfinite * (i % 2), 0u);
        if (want[tile].nonfinite > 0) continue;  // a NaN's payload is the processor's
        ASSERT_EQ(BitsOf(got[tile].sumsq), BitsOf(want[tile].sumsq)) << count << " " << tile;
      }
    }
  }
}

TEST_F(CudaOverAStandin, WorkFromAnotherThreadIsForTheSameGpu) {
  auto device = Make();
  const Stream stream = *device->NewStream();
  const Event event = *device->NewEvent();
  std::thread([&] {
    float from = 1, to = 0;
    const Piece piece{&from, 1};
    EXPECT_TRUE(device->Copy(stream, &to, &from, 4).ok());
    EXPECT_TRUE(device->Pack(stream, {{&piece, 1}, DType::kF32, DType::kF32, &to, 2}).ok());
    EXPECT_TRUE(device->Record(stream, event).ok());
  }).join();
  std::thread([&] { EXPECT_TRUE(device->Wait(stream, event).ok()); }).join();
  std::thread([&] { EXPECT_TRUE(device->Synchronize(event).ok()); }).join();
}

TEST_F(CudaOverAStandin, AllIsGivenBack) {
  const size_t before = standin_.alive();
  {
    auto device = Make();
    ASSERT_TRUE(device->Allocate(MemoryKind::kPinned, 64).ok());
    ASSERT_TRUE(device->Allocate(MemoryKind::kDevice, 64).ok());
    ASSERT_TRUE(device->NewStream().ok());
    ASSERT_TRUE(device->NewEvent().ok());
    EXPECT_EQ(standin_.alive(), before + 4);
  }
  EXPECT_EQ(standin_.alive(), before);
}

TEST_F(CudaOverAStandin, KeepNamesTheFrameworksAllocator) {
  void* kept_on = nullptr;
  size_t kept = 0;
  auto device = Make([&](void* stream, const void*, size_t bytes) {
    kept_on = stream;
    kept = bytes;
    return absl::OkStatus();
  });
  void* foreign = nullptr;
  ASSERT_EQ(library_->table().stream_create(&foreign), 0);
  const Stream stream = device->Adopt(foreign);
  EXPECT_EQ(device->Adopt(foreign), stream);
  EXPECT_TRUE(device->Keep(stream, &kept, 8).ok());
  EXPECT_EQ(kept_on, foreign);
  EXPECT_EQ(kept, 8u);
  device.reset();
  EXPECT_EQ(library_->table().stream_destroy(foreign), 0);  // not the device's to give back
}

TEST_F(CudaOverAStandin, AStreamThatCapturesIsRefused) {
  auto device = Make();
  void* foreign = nullptr;
  ASSERT_EQ(library_->table().stream_create(&foreign), 0);
  const Stream stream = device->Adopt(foreign);
  const Event event = *device->NewEvent();
  standin_.capture(foreign);
  for (const absl::Status& status : {device->Record(stream, event), device->Wait(stream, event)}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr("captures a CUDA graph"));
  }
  device.reset();
  library_->table().stream_destroy(foreign);
}

TEST_F(CudaOverAStandin, NoMemoryIsSaidWithItsSize) {
  auto device = Make();
  standin_.fail("cudaHostAlloc", kOutOfMemory);
  const absl::Status no_memory = device->Allocate(MemoryKind::kPinned, 4096).status();
  EXPECT_EQ(no_memory.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(no_memory.message(),
              HasSubstr("GPU 1: 4096 bytes of pinned memory (cudaHostAlloc): cudaErrorMem"));
  EXPECT_THAT(no_memory.message(), HasSubstr("give a smaller pinned_bytes, or let this process "
                                             "lock more memory (ulimit -l is "));
  standin_.reset();
  EXPECT_TRUE(device->Allocate(MemoryKind::kPinned, 64).ok());  // the refused slab does not count
}

// Calls of a device, each with the call of CUDA under it.
using Call = std::pair<const char*, std::function<absl::Status()>>;

TEST_F(CudaOverAStandin, TheErrorOfEachCallIsTheAnswer) {
  auto device = Make();
  const Stream stream = *device->NewStream();
  const Event event = *device->NewEvent();
  float x = 1, y = 0;
  TileFacts facts;
  const Piece piece{&x, 1};
  const Packing packing{{&piece, 1}, DType::kF32, DType::kF32, &y};
  const Call calls[] = {
      {"cudaMemcpyAsync", [&] { return device->Copy(stream, &y, &x, 4); }},
      {"cudaLaunchKernel", [&] { return device->Pack(stream, packing); }},
      {"cudaLaunchKernel", [&] { return device->Unpack(stream, packing); }},
      {"cudaLaunchKernel",
       [&] {
         return device->Measure(stream, {&x, 1, DType::kF32, 64, &facts});
       }},
      {"cudaEventRecord", [&] { return device->Record(stream, event); }},
      {"cudaStreamWaitEvent", [&] { return device->Wait(stream, event); }},
      {"cudaEventSynchronize", [&] { return device->Synchronize(event); }},
      {"cudaEventQuery", [&] { return device->Reached(event).status(); }},
      {"cudaStreamIsCapturing", [&] { return device->Record(stream, event); }},
      {"cudaSetDevice", [&] { return device->Copy(stream, &y, &x, 4); }},
      {"cudaStreamCreateWithFlags", [&] { return device->NewStream().status(); }},
      {"cudaEventCreateWithFlags", [&] { return device->NewEvent().status(); }},
      {"cudaMalloc", [&] { return device->Allocate(MemoryKind::kDevice, 8).status(); }}};
  for (const auto& [call, run] : calls) {
    standin_.fail(call, kIllegalAddress);
    const absl::Status status = run();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << call;
    EXPECT_THAT(status.message(), HasSubstr("(700)"));
    EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("(", call, ")")));
    standin_.reset();
    EXPECT_TRUE(run().ok()) << call;
  }
}

TEST_F(CudaOverAStandin, MemoryOfAnotherGpuIsNamed) {
  auto device = Make();
  const float there = 0;
  standin_.claim(&there, sizeof there, 0);
  const absl::Status status = device->Holds(&there).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("memory of GPU 0, this trainer uses GPU 1"));
}

TEST_F(CudaOverAStandin, AGpuThatIsNotThereIsNamed) {
  for (const int ordinal : {-1, 2}) {
    const absl::Status status = CudaDevice::Create(library_, ordinal, nullptr).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("this process sees 2"));
  }
}

TEST_F(CudaOverAStandin, AnOldDriverIsToldApartFromNoneAndFromNoGpu) {
  standin_.fail("cudaGetDeviceCount", kInsufficientDriver);
  standin_.fail("cudaDriverGetVersion", 12040);
  const absl::Status old = library_->DeviceCount().status();
  EXPECT_EQ(old.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(old.message(), HasSubstr("driver is for CUDA 12.4"));
  EXPECT_THAT(old.message(), HasSubstr("needs 13.0: update the driver"));
  standin_.fail("cudaDriverGetVersion", 13020);
  EXPECT_THAT(library_->DeviceCount().status().message(), HasSubstr("CUDA_VISIBLE_DEVICES"));
}

TEST(CudaLibrary, SaysWhatIsWrongWithTheFile) {
  const absl::Status missing = CudaLibrary::Open("no/such/libballast_cuda.so").status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(missing.message(), HasSubstr("has no CUDA part"));
  const std::string needed =
      absl::StrCat("; needed: a CUDA part with interface ", cuda::kAbiVersion,
                   " and a driver for CUDA 13.0 or newer");
  EXPECT_THAT(std::string(missing.message()),
              testing::ContainsRegex("; found: (no|an) NVIDIA driver"));
  EXPECT_THAT(missing.message(), HasSubstr(needed));
  const absl::Status no_library = CudaLibrary::Open("/proc/self/status").status();
  EXPECT_EQ(no_library.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(no_library.message(), HasSubstr("cannot be opened"));
  EXPECT_THAT(no_library.message(), HasSubstr(needed));
  Dl_info other;
  ASSERT_NE(dladdr(reinterpret_cast<void*>(&dlopen), &other), 0);
  EXPECT_THAT(CudaLibrary::Open(other.dli_fname).status().message(), HasSubstr("has no symbol"));
  const cuda::Table old{.abi_version = cuda::kAbiVersion + 1};
  const absl::Status other_build = CudaLibrary::Over(&old, "libballast_cuda.so").status();
  EXPECT_EQ(other_build.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(other_build.message(), HasSubstr("from one build"));
}

// Where a driver shows a GPU, the real shared object finds it; elsewhere it says what is missing.
TEST(CudaLibrary, TheRealOneStartsWithoutAGpu) {
  auto library = CudaLibrary::Open(BALLAST_CUDA_LIBRARY);
  ASSERT_TRUE(library.ok()) << library.status();
  int runtime = 0;
  EXPECT_EQ((*library)->table().runtime_version(&runtime), 0);
  EXPECT_EQ(runtime / 1000, kRuntimeNeeded / 1000);
  const absl::StatusOr<int> count = (*library)->DeviceCount();
  if (count.ok()) {
    EXPECT_GT(*count, 0);
    return;
  }
  EXPECT_EQ(count.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(count.status().message(),
              testing::AnyOf(HasSubstr("no NVIDIA driver"), HasSubstr("update the driver"),
                             HasSubstr("shows no GPU")));
}

}  // namespace
}  // namespace ballast::device
