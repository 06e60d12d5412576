// Tensors in a device's memory: rounds over the hostile device, whose work runs as late as its
// events permit, together with tensors of the host. A missing wait gives a wrong weight.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <thread>

#include "client/cpp/job/device_staging.h"
#include "client/cpp/job/gpu_tensors.h"
#include "client/cpp/session/session.h"
#include "tests/client/cpp/session_core_fixture.h"
#include "tests/client/device/hostile_device.h"

namespace ballast::client {
namespace {

using device::HostileDevice;

constexpr size_t kFrameBytes = 128;

// One extent of 64 elements holds parts of several tensors; tensor 1 is in host memory.
constexpr uint32_t kSizes[] = {40, 30, 7, 115};
constexpr size_t kHostTensor = 1;
constexpr size_t kExtents = 3;

AttachedJob Attached() {
  AttachedJob attached = MakeAttachedJob(0);
  for (const uint32_t size : kSizes) {
    TensorSpec tensor;
    tensor.name = "t" + std::to_string(attached.spec.tensors.size());
    tensor.shape = {size};
    tensor.dtype = ::ballast::DType::kF32;
    attached.spec.tensors.push_back(tensor);
  }
  attached.layout = *Layout::Build(LayoutTensors(attached.spec.tensors), kElements, kElements);
  for (size_t i = 0; i < kExtents; ++i) attached.reply.mutable_plan()->add_owner(1);
  return attached;
}

// A trainer whose framework has its own stream on the device.
class DeviceTrainer {
 public:
  explicit DeviceTrainer(uint32_t seed, size_t buffers = 6,
                         Durability durability = Durability::kNone,
                         size_t buffer_bytes = kFrameBytes)
      : device_(seed),
        framework_(*device_.NewStream()),
        staging_(*DeviceStaging::Create(&device_, buffers * kFrameBytes, buffer_bytes)) {
    if (buffer_bytes < kFrameBytes) DigestAndFit();
    options_.job = "test";
    options_.durability = durability;
    options_.on_pause = [](const Pause&) {};
    const AttachedJob attached = Attached();
    core_ = std::make_unique<SessionCore>(
        options_, attached, SessionCore::Environment{&transport_, &lease_, staging_.get(), [] {}});
    EXPECT_TRUE(core_->Start(attached.reply.plan()).ok());
    for (size_t t = 0; t < std::size(kSizes); ++t) AddTensor(t);
    EXPECT_TRUE(RunUntil([this] { return core_->servers()[0]->welcomed(); }));
  }
  ~DeviceTrainer() {
    core_.reset();
    device_.RunAll();
  }

  // The framework forms gradients; the optimizer's step begins without waiting for them. sums_of:
  // as in RoundInput.
  void BeginStep(float value, uint32_t sums_of = 0) {
    std::vector<TensorBuffers> buffers;
    want_.clear();
    for (size_t t = 0; t < std::size(kSizes); ++t) {
      want_.emplace_back(kSizes[t]);
      for (size_t i = 0; i < kSizes[t]; ++i) want_[t][i] = value + static_cast<float>(100 * t + i);
      Form(t);
      buffers.push_back({grads_[t], weights_[t]});
    }
    ASSERT_TRUE(staging_->Begin(framework_).ok());
    auto input = StepInput(core_->job(), std::vector<Hyper>(1, AdamWHyper()), buffers);
    ASSERT_TRUE(input.ok()) << input.status();
    input->sums_of = sums_of;
    ASSERT_TRUE(core_->BeginRound(*std::move(input)).ok());
  }
  // The job goes into epoch 2 before the round's end.
  void NextEpoch() {
    v1::AttachReply reply = Attached().reply;
    reply.mutable_epoch()->set_epoch(2);
    peer_->AnswerCalls(reply.SerializeAsString());
    server_.NextEpoch();
  }
  bool Finish() {
    return RunUntil([this] { return core_->Done() || !core_->error().ok(); });
  }
  // The framework reads the new weights, on its stream.
  std::vector<std::vector<float>> EndStep() {
    RoundReport report;
    EXPECT_TRUE(core_->EndRound(&report).ok());
    EXPECT_GE(report.bytes_up, kExtents * kElements * sizeof(float));
    EXPECT_TRUE(staging_->End(framework_).ok());
    std::vector<std::vector<float>> read;
    for (size_t t = 0; t < std::size(kSizes); ++t) read.emplace_back(kSizes[t]);
    for (size_t t = 0; t < std::size(kSizes); ++t) {
      const size_t bytes = kSizes[t] * sizeof(float);
      const auto copy = [to = read[t].data(), from = weights_[t], bytes] {
        std::memcpy(to, from, bytes);
      };
      if (t == kHostTensor) {
        copy();
      } else {
        device_.Queue(framework_, {{weights_[t], bytes}}, {}, copy);
      }
    }
    const device::Event done = *device_.NewEvent();
    EXPECT_TRUE(device_.Record(framework_, done).ok());
    EXPECT_TRUE(device_.Synchronize(done).ok());
    return read;
  }
  // The step has ended with an error. Whether no queued work reads the gradients.
  bool GradientsAreFree() {
    for (size_t t = 0; t < std::size(kSizes); ++t) {
      const bool here = t != kHostTensor;
      if (here && !device_.HostWrites(grads_[t], kSizes[t] * sizeof(float)).ok()) return false;
    }
    return true;
  }
  // The step has ended with an error. The framework gives the weights' memory to other tensors,
  // which are filled with zeros; whether they are zeros.
  bool MemoryIsFree() {
    core_->EndActivity();
    for (size_t t = 0; t < std::size(kSizes); ++t) {
      const size_t bytes = kSizes[t] * sizeof(float);
      const auto fill = [to = weights_[t], bytes] { std::memset(to, 0, bytes); };
      if (t != kHostTensor) device_.Queue(framework_, {}, {{weights_[t], bytes}}, fill);
    }
    device_.RunAll();
    bool zeros = true;
    for (size_t t = 0; t < std::size(kSizes); ++t) {
      if (t == kHostTensor) continue;
      zeros &= std::all_of(weights_[t], weights_[t] + kSizes[t], [](float w) { return w == 0; });
    }
    return zeros;
  }
  bool RunUntil(const std::function<bool()>& done) { return client::RunUntil(&events_, done); }

  const std::vector<std::vector<float>>& want() const { return want_; }
  SessionCore& core() { return *core_; }
  EchoServer& server() { return server_; }
  MemoryPeer& peer() { return *peer_; }
  BufferLease& lease() { return lease_; }
  Time now() const { return events_.now(); }

 private:
  // The steps of an attach before it knows how long the servers' frames are.
  void DigestAndFit() {
    const size_t elements = staging_->buffer_bytes() / sizeof(float);
    void* const tensor = *device_.Allocate(device::MemoryKind::kDevice, elements * sizeof(float));
    device_.Queue(framework_, {}, {{tensor, elements * sizeof(float)}},
                  [=] { std::memset(tensor, 1, elements * sizeof(float)); });
    ASSERT_TRUE(staging_->Begin(framework_).ok());
    for (int i = 0; i < 20; ++i) {
      const auto buffer = staging_->Stage({{tensor, elements}}, ::ballast::DType::kF32);
      ASSERT_TRUE(buffer.ok()) << buffer.status();
      if (i % 2 == 0) {
        const auto bytes = staging_->Await(*buffer);
        ASSERT_TRUE(bytes.ok() && **bytes == 1) << bytes.status();
      }
      ASSERT_TRUE(staging_->Drop(*buffer).ok());
    }
    ASSERT_TRUE(staging_->FitFrames(kFrameBytes).ok());
    ASSERT_EQ(staging_->buffer_bytes(), kFrameBytes);
  }
  void AddTensor(size_t t) {
    for (std::vector<float*>* const memory : {&grads_, &weights_}) {
      if (t == kHostTensor) {
        host_.push_back(std::make_unique<float[]>(kSizes[t]));
        memory->push_back(host_.back().get());
      } else {
        memory->push_back(static_cast<float*>(
            *device_.Allocate(device::MemoryKind::kDevice, kSizes[t] * sizeof(float))));
      }
    }
  }
  void Form(size_t t) {
    const size_t bytes = kSizes[t] * sizeof(float);
    const auto form = [to = grads_[t], from = want_[t], bytes] {
      std::memcpy(to, from.data(), bytes);
    };
    if (t == kHostTensor) return form();
    device_.Queue(framework_, {}, {{grads_[t], bytes}}, form);
  }

  HostileDevice device_;
  const device::Stream framework_;
  std::unique_ptr<DeviceStaging> staging_;
  BufferLease lease_;
  EventQueue events_;
  MemoryTransport transport_{&events_};
  MemoryPeer* const peer_ = transport_.AddPeer(kAddress);
  EchoServer server_{peer_, kExtents};
  JobOptions options_;
  std::vector<std::unique_ptr<float[]>> host_;
  std::vector<float*> grads_, weights_;
  std::vector<std::vector<float>> want_;
  std::unique_ptr<SessionCore> core_;
};

TEST(SessionDevice, RoundsHaveTheGradientsBitsForEverySeed) {
  for (uint32_t seed = 0; seed < 64; ++seed) {
    DeviceTrainer trainer(seed);
    for (const float value : {1.0f, 1000.0f, 2000.0f}) {
      trainer.BeginStep(value);
      ASSERT_TRUE(trainer.Finish());
      ASSERT_TRUE(trainer.core().error().ok()) << trainer.core().error();
      ASSERT_EQ(trainer.EndStep(), trainer.want()) << "seed " << seed;
      EXPECT_TRUE(trainer.lease().WaitReleased(std::chrono::nanoseconds(0)));
    }
  }
}

TEST(SessionDevice, FewestBuffersAreEnough) {
  for (uint32_t seed = 0; seed < 16; ++seed) {
    DeviceTrainer trainer(seed, DeviceStaging::kBuffersMin);
    trainer.BeginStep(1);
    ASSERT_TRUE(trainer.Finish());
    ASSERT_EQ(trainer.EndStep(), trainer.want()) << "seed " << seed;
  }
}

TEST(SessionDevice, BuffersAreCutAnewForLongerFramesOfTheServers) {
  for (uint32_t seed = 0; seed < 16; ++seed) {
    DeviceTrainer trainer(seed, DeviceStaging::kBuffersMin, Durability::kNone, 64);
    for (const float value : {1.0f, 1000.0f}) {
      trainer.BeginStep(value);
      ASSERT_TRUE(trainer.Finish());
      ASSERT_TRUE(trainer.core().error().ok()) << trainer.core().error();
      ASSERT_EQ(trainer.EndStep(), trainer.want()) << "seed " << seed;
    }
  }
}

TEST(SessionDevice, FramesOfWhichTooFewFitAreRefusedWithTheNumbersAndNothingChanges) {
  HostileDevice device(0);
  const auto staging = *DeviceStaging::Create(&device, 16 * 64, 64);
  const absl::Status status = staging->FitFrames(320);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(status), Reason::kUnsupported);
  EXPECT_EQ(status.message(),
            "the servers cut frames of 320 bytes, and pinned memory of 1024 bytes holds 3 of them; "
            "give pinned_bytes of at least 1280, or set rounds.chunk_bytes of the servers to at "
            "most 256");
  EXPECT_EQ(staging->buffer_bytes(), 64u);
  EXPECT_TRUE(staging->FitFrames(32).ok());  // Shorter frames have room.
  EXPECT_EQ(staging->buffer_bytes(), 64u);
  EXPECT_TRUE(staging->FitFrames(256).ok());
}

TEST(SessionDevice, AServerThatComesBackGetsItsPartFromTheDeviceAgain) {
  for (int frames = 0; frames < 6; ++frames) {
    DeviceTrainer trainer(7, 6, Durability::kPower);
    trainer.server().frames_until_stop = frames;
    trainer.BeginStep(5);
    ASSERT_TRUE(trainer.RunUntil([&] { return trainer.core().servers()[0]->reconnect().away(); }));
    const Time back_at = trainer.now() + std::chrono::seconds(3);
    ASSERT_TRUE(trainer.RunUntil([&] { return trainer.now() >= back_at; }));
    trainer.peer().Restart();
    ASSERT_TRUE(trainer.Finish());
    ASSERT_TRUE(trainer.core().error().ok()) << trainer.core().error();
    ASSERT_EQ(trainer.EndStep(), trainer.want()) << frames;
  }
}

TEST(SessionDevice, AStepThatEndsEarlyLeavesNoWorkOnItsTensors) {
  for (uint32_t seed = 0; seed < 32; ++seed) {
    DeviceTrainer trainer(seed);
    trainer.BeginStep(5);
    // Some weights are on their way.
    ASSERT_TRUE(trainer.RunUntil(
        [&] { return trainer.core().counters().payload_down_bytes >= kElements * sizeof(float); }));
    trainer.core().Fail(absl::InternalError("the step ends here"));
    ASSERT_FALSE(trainer.core().error().ok());
    EXPECT_TRUE(trainer.MemoryIsFree()) << "seed " << seed;
  }
}

// A new epoch ends a step of sums before the round is decided, with gradients on their way.
TEST(SessionDevice, AStepOfStaleSumsLeavesNoWorkOnItsTensors) {
  for (uint32_t seed = 0; seed < 32; ++seed) {
    DeviceTrainer trainer(seed, 6, Durability::kPower);
    trainer.server().hold = true;
    trainer.BeginStep(5, 1);
    ASSERT_TRUE(trainer.RunUntil([&] { return trainer.server().frames >= 1; }));
    trainer.NextEpoch();
    ASSERT_TRUE(trainer.Finish());
    RoundReport report;
    ASSERT_EQ(ReasonOf(trainer.core().EndRound(&report)), Reason::kStaleEpoch);
    ASSERT_TRUE(trainer.core().error().ok()) << trainer.core().error();
    EXPECT_TRUE(trainer.GradientsAreFree()) << "seed " << seed;
    EXPECT_TRUE(trainer.MemoryIsFree()) << "seed " << seed;
  }
}

// A whole session, whose transport has a thread of its own, as gRPC has.
class SessionOnDevice {
 public:
  explicit SessionOnDevice(uint32_t seed) : device_(seed), framework_(*device_.NewStream()) {
    for (const uint32_t size : kSizes) {
      const size_t bytes = size * sizeof(float);
      for (std::vector<float*>* const memory : {&grads_, &weights_}) {
        memory->push_back(
            static_cast<float*>(*device_.Allocate(device::MemoryKind::kDevice, bytes)));
        device_.Queue(framework_, {}, {{memory->back(), bytes}},
                      [to = memory->back(), bytes] { std::memset(to, 1, bytes); });
      }
    }
    auto gpu =
        std::make_unique<GpuTensors>(*DeviceStaging::Create(&device_, 6 * kFrameBytes, kFrameBytes),
                                     [this] { return framework_; });
    const auto make_transport = [this](Mutex* mu) { return MakeTransport(mu); };
    auto session = Session::Open(JobOptions{{}, "test"}, Attached(), make_transport,
                                 {weights_.begin(), weights_.end()}, std::move(gpu));
    EXPECT_TRUE(session.ok()) << session.status();
    session_ = *std::move(session);
    runs_ = false;  // No time passes between two calls.
  }
  ~SessionOnDevice() {
    Stop();
    session_.reset();
    device_.RunAll();
  }

  // The error of a step that is aborted when some of its weights are on their way.
  absl::Status AbortedStep() {
    const uint64_t before = session_->counters().payload_down_bytes;
    std::vector<TensorBuffers> buffers;
    for (size_t t = 0; t < std::size(kSizes); ++t) buffers.push_back({grads_[t], weights_[t]});
    server_->lacking = 1;
    const absl::Status begun = session_->BeginStep({AdamWHyper()}, buffers, 0);
    if (!begun.ok()) return begun;
    runs_ = true;
    while (session_->counters().payload_down_bytes < before + kElements * sizeof(float)) {
      std::this_thread::yield();
    }
    session_->Abort();
    absl::StatusOr<bool> ended = false;
    while (ended.ok() && !*ended) ended = session_->Wait(std::chrono::seconds(1), nullptr);
    Stop();
    return ended.status();
  }
  // As DeviceTrainer::MemoryIsFree; the session is not asked for anything more.
  bool MemoryIsFree() {
    for (size_t t = 0; t < std::size(kSizes); ++t) {
      const size_t bytes = kSizes[t] * sizeof(float);
      device_.Queue(framework_, {}, {{weights_[t], bytes}},
                    [to = weights_[t], bytes] { std::memset(to, 0, bytes); });
    }
    device_.RunAll();
    for (size_t t = 0; t < std::size(kSizes); ++t) {
      for (size_t i = 0; i < kSizes[t]; ++i) {
        if (weights_[t][i] != 0) return false;
      }
    }
    return true;
  }

 private:
  std::unique_ptr<Transport> MakeTransport(Mutex* mu) {
    auto transport = std::make_unique<MemoryTransport>(&events_);
    server_.emplace(transport->AddPeer(kAddress), kExtents);
    thread_ = std::thread([this, mu] {
      while (!stop_) {
        MutexLock lock(mu);
        if (runs_) events_.RunOne();
      }
    });
    return transport;
  }
  void Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }

  HostileDevice device_;
  const device::Stream framework_;
  std::vector<float*> grads_, weights_;
  EventQueue events_;
  std::optional<EchoServer> server_;
  std::atomic<bool> runs_{true};
  std::atomic<bool> stop_{false};
  std::thread thread_;
  std::unique_ptr<Session> session_;
};

TEST(SessionDevice, AStepThatFailsLeavesNoWorkOnItsTensorsWhenWaitReturns) {
  for (uint32_t seed = 0; seed < 16; ++seed) {
    SessionOnDevice trainer(seed);
    ASSERT_EQ(trainer.AbortedStep().code(), absl::StatusCode::kCancelled);
    EXPECT_TRUE(trainer.MemoryIsFree()) << "seed " << seed;
  }
}

TEST(SessionDevice, TooFewBuffersAreRefusedWithTheNumbers) {
  HostileDevice device(0);
  const absl::Status status = DeviceStaging::Create(&device, 3 * 64, 64).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "192 bytes of pinned memory are 3 buffers of 64 bytes; give at least 4");
}

}  // namespace
}  // namespace ballast::client
