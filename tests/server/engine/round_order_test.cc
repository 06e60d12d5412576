// Any order in which frames may arrive gives the same bits of weights, m and v: slots interleaved
// at random, the frames of each shuffled, some sent several times, with a window that most of them
// do not fit into. The reference is the plain loop of engine_cluster.h: torch's formula.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <ostream>
#include <random>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/server/engine/engine_cluster.h"
#include "tests/server/round/plans.h"

namespace ballast::server {
namespace {

using testing::Cluster;
using testing::MakeBegin;
using testing::MakePlan;
using testing::Random;
using testing::Reference;

constexpr uint32_t kWorld = 3;
constexpr uint64_t kRounds = 20;
const std::vector<int64_t> kSizes = {300, 1, 77, 640, 129};

struct Arrivals {
  uint64_t seed = 0;
  std::vector<uint32_t> servers;
  uint32_t window_extents = 64;
};

void PrintTo(const Arrivals& arrivals, std::ostream* os) {
  *os << "seed " << arrivals.seed << ", " << arrivals.servers.size() << " servers, window "
      << arrivals.window_extents;
}

class AnyOrder : public ::testing::TestWithParam<Arrivals> {
 protected:
  // Every frame of `slot` at least once, in any order.
  std::vector<Cluster::Frame> Shuffled(std::vector<Cluster::Frame> frames) {
    const size_t distinct = frames.size();
    for (size_t i = 0; i < distinct / 3; ++i) frames.push_back(frames[rng_() % distinct]);
    std::shuffle(frames.begin(), frames.end(), rng_);
    return frames;
  }

  // All slots' rounds at once: each begins before its frames, otherwise anything goes.
  void Push(Cluster* cluster, uint64_t round, std::vector<std::vector<Cluster::Frame>> queues) {
    std::vector<bool> begun(queues.size());
    const auto left = [&] {
      return std::any_of(queues.begin(), queues.end(), [](const auto& q) { return !q.empty(); });
    };
    while (left()) {
      const auto slot = static_cast<uint32_t>(rng_() % queues.size());
      if (queues[slot].empty()) continue;
      if (!begun[slot]) cluster->Begin(slot, MakeBegin(round));
      begun[slot] = true;
      cluster->Send(queues[slot].back());
      queues[slot].pop_back();
    }
  }

  // Sends again, in any order, what did not fit into the window, until the round is done.
  void SendRefusedAgain(Cluster* cluster, uint64_t round,
                        const std::vector<std::vector<Cluster::Frame>>& frames) {
    bool ended = false;
    while (!ended) {
      ended = true;
      for (auto& [key, sink] : cluster->sinks_) {
        ended = sink->Ended(round) && ended;
        std::vector<FrameRefused> refusals = sink->TakeRefusals();
        std::shuffle(refusals.begin(), refusals.end(), rng_);
        for (const FrameRefused& refused : refusals) {
          SendAgain(cluster, refused, frames[key.second]);
        }
      }
      std::this_thread::yield();
    }
  }

  void SendAgain(Cluster* cluster, const FrameRefused& refused,
                 const std::vector<Cluster::Frame>& frames) {
    // Repetitions are refused, too; the first one counts.
    if (refused.reason == Reason::kDuplicate || refused.reason == Reason::kRoundClosed) return;
    ASSERT_EQ(refused.reason, Reason::kOutOfWindow) << refused.message;
    const auto again = std::find_if(frames.begin(), frames.end(), [&](const Cluster::Frame& f) {
      return f.header.extent == refused.extent && f.header.offset_bytes == refused.offset_bytes;
    });
    ASSERT_NE(again, frames.end());
    ++sent_again_;
    cluster->Send(*again);
  }

  size_t sent_again_ = 0;
  std::mt19937_64 rng_{GetParam().seed};
};

using Tensors = std::vector<std::vector<float>>;

void ExpectSameBits(const Tensors& got, const Tensors& expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t t = 0; t < got.size(); ++t) {
    EXPECT_EQ(std::memcmp(got[t].data(), expected[t].data(), expected[t].size() * 4), 0)
        << what << " tensor " << t;
  }
}

TEST_P(AnyOrder, GivesTheSameBits) {
  Cluster cluster(MakePlan(kSizes, kWorld, GetParam().servers), GetParam().window_extents);
  const auto init = Random(kSizes, 1);
  Reference reference(init);
  for (const auto& frame : Shuffled(cluster.Frames(FrameKind::kInit, 0, 1, init))) {
    cluster.Send(frame);
  }
  for (uint64_t round = 1; round <= kRounds; ++round) {
    std::vector<std::vector<std::vector<float>>> gradients;
    std::vector<std::vector<Cluster::Frame>> frames;
    std::vector<std::vector<Cluster::Frame>> queues;
    for (uint32_t slot = 0; slot < kWorld; ++slot) {
      gradients.push_back(Random(kSizes, static_cast<uint32_t>(round * 100 + slot)));
      frames.push_back(cluster.Frames(FrameKind::kGradient, slot, round, gradients.back()));
      queues.push_back(Shuffled(frames.back()));
    }
    Push(&cluster, round, std::move(queues));
    SendRefusedAgain(&cluster, round, frames);
    ASSERT_TRUE(cluster.Wait(round).ok());
    reference.Step(gradients, 1.0f / kWorld, MakeBegin(round).hyper[0],
                   std::vector<bool>(kSizes.size(), true));
    for (uint32_t slot = 0; slot < kWorld; ++slot) {
      ExpectSameBits(cluster.Weights(slot), reference.p, absl::StrCat("weights of slot ", slot));
    }
    const std::vector<Tensors> state = cluster.FetchArrays(round + 1);
    ExpectSameBits(state[0], reference.p, "masters");
    ExpectSameBits(state[1], reference.m, "m");
    ExpectSameBits(state[2], reference.v, "v");
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
  EXPECT_EQ(sent_again_ > 0, GetParam().window_extents < 64);
}

std::vector<Arrivals> Cases() {
  std::vector<Arrivals> cases;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    for (const uint32_t window : {1u, 2u, 64u}) {
      cases.push_back({seed, {0}, window});
      cases.push_back({seed, {2, 5, 9}, window});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Arrivals, AnyOrder, ::testing::ValuesIn(Cases()),
                         [](const ::testing::TestParamInfo<Arrivals>& param) {
                           const Arrivals& a = param.param;
                           return "seed" + std::to_string(a.seed) + "servers" +
                                  std::to_string(a.servers.size()) + "window" +
                                  std::to_string(a.window_extents);
                         });

}  // namespace
}  // namespace ballast::server
