// Behaviour common to every Collective, with ranks as threads: LocalCollective, and NcclCollective
// over the fake NCCL.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <thread>
#include <vector>

#include "client/collective/id_exchange.h"
#include "client/collective/local_collective.h"
#include "client/collective/nccl_collective.h"
#include "client/device/host_device.h"

namespace ballast::collective {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr nanoseconds kLong = std::chrono::seconds(60), kShort = milliseconds(150);
constexpr uint64_t kEpoch = 12;

// All ranks of one collective, and the clock that they look at.
class Ranks {
 public:
  virtual ~Ranks() = default;
  // Called by every rank on a thread of its own.
  virtual absl::StatusOr<std::unique_ptr<Collective>> Join(uint32_t rank) = 0;
  // Lets time pass; nothing where the clock is the machine's.
  virtual void Pass(nanoseconds) {}
};

class LocalRanks final : public Ranks {
 public:
  LocalRanks(uint32_t world, nanoseconds timeout)
      : group_(LocalGroup::Make(world, kEpoch, timeout)) {}
  absl::StatusOr<std::unique_ptr<Collective>> Join(uint32_t rank) override {
    return group_->Join(rank);
  }

 private:
  const std::shared_ptr<LocalGroup> group_;
};

class NcclRanks final : public Ranks {
 public:
  NcclRanks(uint32_t world, nanoseconds timeout)
      : world_(world), timeout_(timeout), ids_(world, kEpoch, kLong), devices_(world) {
    // As torch does: the client finds the library already loaded in the process.
    static void* const loaded = dlopen(BALLAST_FAKE_NCCL, RTLD_NOW | RTLD_LOCAL);
    EXPECT_NE(loaded, nullptr) << dlerror();
    library_ = *NcclLibrary::Open();
  }
  absl::StatusOr<std::unique_ptr<Collective>> Join(uint32_t rank) override {
    device::HostDevice* const device = &devices_[rank];
    NcclConfig config{.rank = rank, .world = world_, .epoch = kEpoch, .timeout = timeout_};
    config.clock = &clock_;
    // Each rank counts as a process of its own: an abort at one leaves the communicators of the
    // others alone.
    auto made = Connect(std::make_shared<NcclComms>(library_), device, *device->NewStream(), &ids_,
                        std::move(config));
    if (!made.ok()) return made.status();
    return std::unique_ptr<Collective>(*std::move(made));
  }
  void Pass(nanoseconds time) override { clock_.Advance(time); }

 private:
  const uint32_t world_;
  const nanoseconds timeout_;
  LocalIdExchange ids_;
  FakeClock clock_;
  std::vector<device::HostDevice> devices_;
  std::shared_ptr<const NcclLibrary> library_;
};

struct Backend {
  const char* name;
  std::function<std::unique_ptr<Ranks>(uint32_t world, nanoseconds timeout)> make;
};

void PrintTo(const Backend& backend, std::ostream* os) { *os << backend.name; }

class CollectiveConformance : public testing::TestWithParam<Backend> {
 protected:
  // Runs `body` for every rank, each on its thread.
  void Run(uint32_t world, const std::function<void(Collective&)>& body) {
    RunWith(world, kLong, [&](Collective& collective, Ranks&) { body(collective); });
  }
  void RunWith(uint32_t world, nanoseconds timeout,
               const std::function<void(Collective&, Ranks&)>& body) {
    const std::unique_ptr<Ranks> ranks = GetParam().make(world, timeout);
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < world; ++rank) {
      threads.emplace_back([&, rank] {
        auto made = ranks->Join(rank);
        ASSERT_TRUE(made.ok()) << made.status();
        EXPECT_EQ((*made)->rank(), rank);
        EXPECT_EQ((*made)->world(), world);
        body(**made, *ranks);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
};

// A rank whose call has failed uses its memory for something else, at once.
TEST(LocalGroupTest, ARankThatHasFailedIsReadByNoOther) {
  constexpr size_t kCount = 100'000;
  for (int i = 0; i < 60; ++i) {
    const auto group = LocalGroup::Make(2, kEpoch, kLong);
    std::atomic<uint32_t> in{0};
    const auto call = [&](uint32_t rank) {
      std::vector<float> bucket(2 * kCount, 1.0f), share(kCount);
      const std::unique_ptr<Collective> mine = group->Join(rank);
      in.fetch_add(1);
      const absl::Status status =
          mine->ReduceScatter({1, 0}, DType::kF32, bucket.data(), share.data(), kCount);
      std::fill(bucket.begin(), bucket.end(), 1e9f);
      const size_t right = std::count(share.begin(), share.end(), 2.0f);
      EXPECT_TRUE(!status.ok() || right == kCount) << right;
    };
    std::thread first(call, 0), second(call, 1);
    while (in.load() < 2) std::this_thread::yield();
    group->Join(0)->Abort(absl::AbortedError("another job of the process has failed"));
    first.join();
    second.join();
  }
}

// A value of rank r at place i, exact in every dtype, so that sums have one result.
float ValueOf(uint32_t rank, size_t i) { return static_cast<float>((rank + 1) * (i % 7)); }

TEST_P(CollectiveConformance, ReduceScatterLeavesEachRankItsPartOfTheSum) {
  for (const uint32_t world : {1u, 2u, 4u}) {
    Run(world, [&](Collective& collective) {
      for (const size_t count : {size_t{1}, size_t{5}, size_t{130}}) {
        std::vector<float> bucket(world * count), share(count, -1.0f);
        for (size_t i = 0; i < bucket.size(); ++i) bucket[i] = ValueOf(collective.rank(), i);
        ASSERT_TRUE(
            collective.ReduceScatter({1, 0}, DType::kF32, bucket.data(), share.data(), count).ok());
        for (size_t i = 0; i < count; ++i) {
          float sum = 0;
          for (uint32_t rank = 0; rank < world; ++rank) {
            sum += ValueOf(rank, collective.rank() * count + i);
          }
          ASSERT_EQ(share[i], sum) << "world " << world << " at " << i;
        }
      }
    });
  }
}

TEST_P(CollectiveConformance, SumsOf16BitsAreRoundedToNearestEven) {
  struct Case {
    DType dtype;
    uint16_t a, b, sum;
  };
  for (const Case& c : {Case{DType::kBF16, 0x3F80, 0x3F81, 0x4000},    // 1 + 1.0078125: tie, even
                        Case{DType::kBF16, 0x3F80, 0x3F83, 0x4002},    // 1 + 1.0234375: tie, even
                        Case{DType::kF16, 0x3C00, 0x3C01, 0x4000},     // 1 + 1.0009765625: tie
                        Case{DType::kF16, 0x7BFF, 0x7BFF, 0x7C00}}) {  // 65504 twice: infinity
    Run(2, [&](Collective& collective) {
      const uint16_t mine = collective.rank() == 0 ? c.a : c.b;
      const std::vector<uint16_t> bucket(2, mine);
      uint16_t share = 0;
      ASSERT_TRUE(collective.ReduceScatter({1, 0}, c.dtype, bucket.data(), &share, 1).ok());
      EXPECT_EQ(share, c.sum) << DTypeName(c.dtype);
    });
  }
}

TEST_P(CollectiveConformance, AllGatherBringsEveryRanksBitsToAll) {
  Run(4, [](Collective& collective) {
    for (const size_t bytes : {size_t{0}, size_t{1}, size_t{300}}) {
      const std::vector<uint8_t> share(bytes, static_cast<uint8_t>(0xF0 + collective.rank()));
      std::vector<uint8_t> bucket(4 * bytes, 0);
      ASSERT_TRUE(collective.AllGather({1, 2}, share.data(), bucket.data(), bytes).ok());
      for (size_t i = 0; i < bucket.size(); ++i) ASSERT_EQ(bucket[i], 0xF0 + i / bytes);
    }
  });
}

TEST_P(CollectiveConformance, ManyCallsInARowDoNotMix) {
  Run(3, [](Collective& collective) {
    for (uint32_t i = 0; i < 50; ++i) {
      const std::vector<float> bucket(3, static_cast<float>(i));
      float share = 0;
      ASSERT_TRUE(collective.ReduceScatter({i, 0}, DType::kF32, bucket.data(), &share, 1).ok());
      ASSERT_EQ(share, 3.0f * static_cast<float>(i));
    }
  });
}

TEST_P(CollectiveConformance, ARankThatDoesNotArriveIsAnErrorWithEpochCallBucketAndRound) {
  std::atomic<bool> ended{false};
  RunWith(2, kShort, [&](Collective& collective, Ranks& ranks) {
    while (collective.rank() == 1 && !ended) {
      ranks.Pass(kShort);
      std::this_thread::yield();
    }
    if (collective.rank() == 1) return;
    const std::vector<float> bucket(2, 1.0f);
    float share = 0;
    const auto reduce = [&] {
      return collective.ReduceScatter({812, 7}, DType::kF32, bucket.data(), &share, 1);
    };
    const absl::Status status = reduce();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    const std::string text(status.message());
    EXPECT_NE(text.find("of epoch 12 did not arrive within 0.15 s (in reduce-scatter of bucket "
                        "7 of round 812"),
              text.npos)
        << text;
    EXPECT_EQ(reduce(), status) << "a stale collective says so at once";
    EXPECT_EQ(share, 0.0f);
    ended = true;
  });
}

TEST_P(CollectiveConformance, AnAbortFromAnotherThreadEndsACallThatWaits) {
  const absl::Status why = absl::AbortedError("epoch 13 has begun");
  Run(2, [&](Collective& collective) {
    if (collective.rank() == 1) return;
    std::thread other([&] { collective.Abort(why); });
    std::vector<uint8_t> bucket(2);
    const uint8_t share = 1;
    EXPECT_EQ(collective.AllGather({1, 0}, &share, bucket.data(), 1), why);
    other.join();
    collective.Abort(absl::InternalError("too late"));
    EXPECT_EQ(collective.AllGather({2, 0}, &share, bucket.data(), 1), why);
  });
}

TEST_P(CollectiveConformance, DifferentCallsAreAnErrorOnAllRanks) {
  Run(2, [](Collective& collective) {
    const size_t count = 1 + collective.rank();
    const std::vector<float> bucket(2 * count, 1.0f);
    std::vector<float> share(count, 0.0f);
    const absl::Status status =
        collective.ReduceScatter({3, 1}, DType::kF32, bucket.data(), share.data(), count);
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.ToString().find("reduce-scatter of bucket 1 of round 3"), std::string::npos)
        << status;
  });
}

TEST_P(CollectiveConformance, ElementsOfNoTypeAreRefused) {
  Run(1, [](Collective& collective) {
    float share = 0;
    EXPECT_EQ(collective.ReduceScatter({1, 0}, kNoDType, &share, &share, 1).code(),
              absl::StatusCode::kInvalidArgument);
  });
}

INSTANTIATE_TEST_SUITE_P(
    All, CollectiveConformance,
    testing::Values(Backend{"local",
                            [](uint32_t world, nanoseconds timeout) -> std::unique_ptr<Ranks> {
                              return std::make_unique<LocalRanks>(world, timeout);
                            }},
                    Backend{"nccl",
                            [](uint32_t world, nanoseconds timeout) -> std::unique_ptr<Ranks> {
                              return std::make_unique<NcclRanks>(world, timeout);
                            }}),
    testing::PrintToStringParamName());

}  // namespace
}  // namespace ballast::collective
