// The pipeline on the hostile device: right for every seed as it stands, and wrong for one of the
// first kSeeds seeds when any one of its calls is left out. Builds pipeline.cc a second time, with
// the marks of left_out.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "client/device/left_out.h"
#include "client/device/pipeline.h"
#include "common/base/status_macros.h"
#include "tests/client/device/hostile_device.h"

namespace ballast::device {

namespace {
LeftOut left_out = LeftOut::kNone;
}  // namespace

bool IsLeftOut(LeftOut call) { return call == left_out; }

namespace {

constexpr uint32_t kSeeds = 32;
constexpr size_t kCount = 48;  // elements of a tensor
constexpr size_t kBytes = kCount * sizeof(float);
constexpr size_t kBufferBytes = 192;
constexpr size_t kTensors = 4;
using Tensor = std::vector<float>;

Tensor Filled(float value) { return Tensor(kCount, value); }

absl::Status Expect(const void* data, float value, const char* what) {
  const Tensor want = Filled(value);
  if (std::memcmp(data, want.data(), kBytes) == 0) return absl::OkStatus();
  return absl::DataLossError(what);
}

// A framework with one stream, which trains for some rounds. Errors say what came out wrong.
class Training {
 public:
  explicit Training(uint32_t seed) : device_(seed) {}

  absl::Status Run() {
    BALLAST_ASSIGN_OR_RETURN(pipeline_, Pipeline::Create(&device_, {6, kBufferBytes / 3}));
    BALLAST_ASSIGN_OR_RETURN(stream_, device_.NewStream());
    BALLAST_ASSIGN_OR_RETURN(event_, device_.NewEvent());
    BALLAST_RETURN_IF_ERROR(CutAnew());
    for (int round = 1; round <= 3; ++round) {
      BALLAST_RETURN_IF_ERROR(PushAll(static_cast<float>(round)));
      BALLAST_RETURN_IF_ERROR(PullAll(static_cast<float>(round)));
    }
    BALLAST_RETURN_IF_ERROR(FreeModel());
    return EndEarly();
  }

 private:
  static Packing One(Tensor& tensor, Piece* piece) {
    *piece = {tensor.data(), kCount};
    return {{piece, 1}, DType::kF32, DType::kF32, nullptr};
  }

  // Longer buffers take the place of shorter ones, from which weights are still on their way.
  absl::Status CutAnew() {
    BALLAST_RETURN_IF_ERROR(device_.Record(stream_, event_));
    for (size_t i = 0; i < kTensors; ++i) {
      BALLAST_ASSIGN_OR_RETURN(const Pipeline::TakenBuffer taken, pipeline_->Take());
      std::memcpy(taken.bytes.data(), Filled(0).data(), kBytes / 3);
      const Piece piece{weights_[i].data(), kCount / 3};
      BALLAST_RETURN_IF_ERROR(
          pipeline_->Pull(taken.buffer, event_, {{&piece, 1}, DType::kF32, DType::kF32, nullptr}));
    }
    BALLAST_RETURN_IF_ERROR(pipeline_->Recut(kBufferBytes));
    return Pull(0, 0);
  }

  absl::StatusOr<size_t> Push(size_t i, float value) {
    Tensor& grad = grads_[i];
    device_.Queue(stream_, {}, {{grad.data(), kBytes}},
                  [&grad, value] { std::fill(grad.begin(), grad.end(), value); });
    BALLAST_RETURN_IF_ERROR(device_.Record(stream_, event_));
    Piece piece;
    BALLAST_ASSIGN_OR_RETURN(const size_t buffer, pipeline_->Push(event_, One(grad, &piece)));
    device_.Reuse(stream_, grad.data(), kBytes, 0x11);
    return buffer;
  }

  // The session reads the first buffer for long; the second one is used twice, and once given up.
  absl::Status PushAll(float round) {
    BALLAST_ASSIGN_OR_RETURN(const size_t held, Push(0, round));
    BALLAST_ASSIGN_OR_RETURN(const auto bytes, pipeline_->Pushed(held));
    BALLAST_ASSIGN_OR_RETURN(const size_t second, Push(1, round + 100));
    BALLAST_ASSIGN_OR_RETURN(const auto second_bytes, pipeline_->Pushed(second));
    BALLAST_RETURN_IF_ERROR(Expect(second_bytes.data(), round + 100, "second gradient"));
    BALLAST_RETURN_IF_ERROR(pipeline_->Release(second));
    BALLAST_ASSIGN_OR_RETURN(const size_t given_up, Push(2, round + 200));
    BALLAST_RETURN_IF_ERROR(device_.HostReads(bytes.data(), bytes.size()));
    BALLAST_RETURN_IF_ERROR(Expect(bytes.data(), round, "held gradient"));
    BALLAST_RETURN_IF_ERROR(pipeline_->Release(given_up));
    return pipeline_->Release(held);
  }

  absl::Status Pull(size_t i, float value) {
    BALLAST_ASSIGN_OR_RETURN(const Pipeline::TakenBuffer taken, pipeline_->Take());
    std::memcpy(taken.bytes.data(), Filled(value).data(), kBytes);
    Piece piece;
    return pipeline_->Pull(taken.buffer, event_, One(weights_[i], &piece));
  }

  void Read(size_t i, Tensor* to) {
    const Tensor& from = weights_[i];
    device_.Queue(stream_, {{from.data(), kBytes}}, {{to->data(), kBytes}},
                  [&from, to] { *to = from; });
  }

  // The framework reads the old weights before Pull and the new ones after HandOver. Weights of one
  // server come while a gradient is on its way to another.
  absl::Status PullAll(float round) {
    BALLAST_ASSIGN_OR_RETURN(const size_t late, Push(3, round + 300));
    for (size_t i = 0; i < kTensors; ++i) Read(i, &old_[i]);
    BALLAST_RETURN_IF_ERROR(device_.Record(stream_, event_));
    for (size_t i = 0; i < kTensors; ++i) {
      BALLAST_RETURN_IF_ERROR(Pull(i, round + 10 * static_cast<float>(i)));
    }
    BALLAST_ASSIGN_OR_RETURN(const auto bytes, pipeline_->Pushed(late));
    BALLAST_RETURN_IF_ERROR(Expect(bytes.data(), round + 300, "gradient beside weights"));
    BALLAST_RETURN_IF_ERROR(pipeline_->Release(late));
    BALLAST_RETURN_IF_ERROR(pipeline_->HandOver(stream_));
    for (size_t i = 0; i < kTensors; ++i) Read(i, &new_[i]);
    BALLAST_RETURN_IF_ERROR(device_.Record(stream_, event_));
    BALLAST_RETURN_IF_ERROR(device_.Synchronize(event_));
    for (size_t i = 0; i < kTensors; ++i) {
      const float now = round + 10 * static_cast<float>(i);
      const float before = round == 1 ? 0 : now - 1;
      BALLAST_RETURN_IF_ERROR(Expect(old_[i].data(), before, "weights before the pull"));
      BALLAST_RETURN_IF_ERROR(Expect(new_[i].data(), now, "weights after the pull"));
    }
    return absl::OkStatus();
  }

  // A step that ends early: the model is freed while its weights are on the way.
  absl::Status FreeModel() {
    BALLAST_RETURN_IF_ERROR(Pull(0, 99));
    device_.Reuse(stream_, weights_[0].data(), kBytes, 0);
    device_.RunAll();
    return Expect(weights_[0].data(), 0, "memory after the model");
  }

  // The same with an allocator that knows nothing of the pipeline's streams.
  absl::Status EndEarly() {
    BALLAST_RETURN_IF_ERROR(Pull(1, 99));
    BALLAST_RETURN_IF_ERROR(pipeline_->Drain());
    Tensor& freed = weights_[1];
    device_.Queue(stream_, {}, {{freed.data(), kBytes}},
                  [&freed] { std::fill(freed.begin(), freed.end(), 7.0f); });
    device_.RunAll();
    return Expect(freed.data(), 7, "memory after a step that ended early");
  }

  std::vector<Tensor> grads_{kTensors, Filled(0)}, weights_{kTensors, Filled(0)};
  std::vector<Tensor> old_{kTensors, Filled(0)}, new_{kTensors, Filled(0)};
  HostileDevice device_;
  std::unique_ptr<Pipeline> pipeline_;
  Stream stream_{};
  Event event_{};
};

TEST(PipelineMutants, NothingIsWrongWhenNothingIsLeftOut) {
  left_out = LeftOut::kNone;
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    const absl::Status status = Training(seed).Run();
    ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status;
  }
}

TEST(PipelineMutants, BuffersThatAreShorterOrMoreThanAllAreRefused) {
  HostileDevice device(1);
  const auto pipeline = *Pipeline::Create(&device, {4, 128});
  for (const size_t bytes : {size_t{64}, size_t{160}, size_t{576}}) {
    const absl::Status status = pipeline->Recut(bytes);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bytes;
  }
  EXPECT_EQ(pipeline->Take()->bytes.size(), 128u);  // Nothing has changed.
}

TEST(PipelineMutants, EachCallThatIsLeftOutIsNoticed) {
  for (auto call = 1; call < static_cast<int>(LeftOut::kCount); ++call) {
    left_out = static_cast<LeftOut>(call);
    uint32_t seed = 0;
    absl::Status status;
    while (seed < kSeeds && (status = Training(seed).Run()).ok()) ++seed;
    EXPECT_LT(seed, kSeeds) << "call " << call << " of left_out.h is never missed";
    std::printf("call %d, seed %u: %s\n", call, seed, std::string(status.message()).c_str());
  }
  left_out = LeftOut::kNone;
}

}  // namespace
}  // namespace ballast::device
