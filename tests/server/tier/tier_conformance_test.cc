// The promises of every tier: the one in memory, and the one on NVMe with several sizes of its
// memory.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <numeric>
#include <ostream>
#include <random>
#include <set>
#include <vector>

#include "server/tier/dram_tier.h"
#include "server/tier/nvme_tier.h"
#include "server/tier/tier.h"
#include "tests/server/tier/memory_images.h"

namespace ballast::server {
namespace {

using testing::MemoryImages;

constexpr uint32_t kTile = 64;
constexpr uint32_t kExtents = 12;
// Two whole tiles and one that fills no cache line.
constexpr uint32_t kElements = 2 * kTile + 23;

constexpr StateShape kShape{.tile_elements = kTile, .arrays = 3, .initial = {0, 0, 0.5f}};

struct TierCase {
  const char* name;
  uint32_t buffers;  // 0: the tier in memory
  bool at_once;      // whether the disk answers within the call
};

void PrintTo(const TierCase& tier, std::ostream* os) { *os << tier.name; }

class TierConformance : public ::testing::TestWithParam<TierCase> {
 protected:
  TierConformance() : images_(kElements * 3 * sizeof(float)) {
    images_.at_once = GetParam().at_once;
    if (GetParam().buffers == 0) {
      tier_ = MakeDramTier(kShape);
    } else {
      auto made = *NvmeTier::Create(
          {.shape = kShape, .extent_elements = kElements, .buffers = GetParam().buffers});
      made->Connect(
          &images_, [](ImageIo::Done done) { return done; },
          [](const absl::Status& status) { ADD_FAILURE() << status; });
      tier_ = std::move(made);
    }
    for (uint32_t e = 0; e < kExtents; ++e) EXPECT_TRUE(tier_->AddExtent(e, kElements).ok());
  }

  // Acquires, waiting for the disk.
  void Acquire(uint32_t extent) {
    bool ready = false;
    tier_->Acquire(extent, [&](const absl::Status& status) {
      EXPECT_TRUE(status.ok()) << status;
      ready = true;
    });
    images_.Run();
    ASSERT_TRUE(ready) << "extent " << extent;
  }

  // Every value of the extent, array by array; `change` may alter it.
  template <typename Change>
  void ForEach(uint32_t extent, const Change& change) {
    for (uint32_t t = 0; t < 3; ++t) {
      const TileView tile = tier_->Tile(extent, t);
      ASSERT_EQ(tile.elements, t < 2 ? kTile : 23u);
      ASSERT_EQ(tile.arrays, 3u);
      for (uint32_t array = 0; array < 3; ++array) {
        for (uint32_t i = 0; i < tile.elements; ++i) {
          change(array, t * kTile + i, tile.array[array] + i);
        }
      }
    }
  }
  static float ValueOf(uint32_t extent, uint32_t array, uint32_t element, uint64_t version) {
    return static_cast<float>(extent * 1000 + array * 333 + element) + 0.25f * version;
  }
  void Set(uint32_t extent, uint64_t version) {
    ForEach(extent, [&](uint32_t array, uint32_t i, float* value) {
      *value = ValueOf(extent, array, i, version);
    });
  }
  void Expect(uint32_t extent, uint64_t version) {
    ForEach(extent, [&](uint32_t array, uint32_t i, const float* value) {
      ASSERT_EQ(*value, version == 0 ? kShape.initial[array] : ValueOf(extent, array, i, version))
          << "extent " << extent << " array " << array << " element " << i;
    });
  }

  MemoryImages images_;
  std::unique_ptr<Tier> tier_;
};

TEST_P(TierConformance, BeginsWithInitialValuesAndKeepsWhatWasWritten) {
  for (uint32_t e = 0; e < kExtents; ++e) {
    Acquire(e);
    Expect(e, 0);
    Set(e, 1);
    tier_->Release(e, 1);
  }
  for (uint32_t e = 0; e < kExtents; ++e) {
    Acquire(e);
    Expect(e, 1);
    tier_->Release(e, 0);
  }
}

TEST_P(TierConformance, SweepsInBothDirectionsAndAnyOrderLoseNothing) {
  std::mt19937 rng(7);
  std::vector<uint64_t> version(kExtents, 0);
  std::vector<uint32_t> order(kExtents);
  std::iota(order.begin(), order.end(), 0u);
  for (uint64_t round = 1; round <= 40; ++round) {
    std::vector<uint32_t> sweep = order;
    if (round % 2 == 0) std::reverse(sweep.begin(), sweep.end());
    if (round % 7 == 0) std::shuffle(sweep.begin(), sweep.end(), rng);
    if (round % 5 == 0) sweep.resize(rng() % kExtents);
    const std::vector<uint32_t> chosen = tier_->BeginSweep(sweep);
    EXPECT_TRUE(std::is_permutation(chosen.begin(), chosen.end(), sweep.begin(), sweep.end()));
    if (round % 3 != 0) sweep = chosen;  // Another order is slower, and as right.
    for (const uint32_t e : sweep) {
      Acquire(e);
      Expect(e, version[e]);
      Set(e, round);
      version[e] = round;
      tier_->Release(e, round);
    }
  }
}

TEST_P(TierConformance, ArraysOfAnAcquiredExtentStay) {
  Acquire(3);
  Acquire(3);
  Set(3, 5);
  float* const state = tier_->State(3);
  for (uint32_t e = 4; e < kExtents; ++e) {
    Acquire(e);
    Set(e, 1);
    tier_->Release(e, 1);
  }
  EXPECT_EQ(tier_->State(3), state);
  Expect(3, 5);
  tier_->Release(3, 5);
  for (uint32_t e = 4; e < kExtents; ++e) {
    Acquire(e);
    tier_->Release(e, 0);
  }
  EXPECT_EQ(tier_->State(3), state);  // It was acquired twice.
  tier_->Release(3, 0);
}

TEST_P(TierConformance, AsManyAsASweepOrAReaderWantsAreHereAtATime) {
  ASSERT_GE(tier_->read_depth(), 1u);
  ASSERT_LE(tier_->read_depth(), tier_->sweep_depth());
  const auto depth = static_cast<uint32_t>(std::min<size_t>(tier_->sweep_depth(), kExtents));
  std::vector<uint32_t> ready;
  for (uint32_t e = 0; e < depth; ++e) {
    tier_->Acquire(e, [&ready, e](const absl::Status&) { ready.push_back(e); });
  }
  images_.Run();
  ASSERT_EQ(ready.size(), depth);
  std::set<float*> places;
  for (const uint32_t e : ready) places.insert(tier_->State(e));
  EXPECT_EQ(places.size(), depth);
}

// Of this process.
uint64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

TEST(DramTierTest, AWarmTierTakesTheMemoryOfItsExtents) {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  const uint64_t before = ResidentBytes();
  std::vector<std::unique_ptr<Tier>> tiers;
  for (int i = 0; i < 16; ++i) {
    tiers.push_back(MakeDramTier(kShape));
    for (uint32_t e = 0; e < kExtents; ++e) ASSERT_TRUE(tiers.back()->AddExtent(e, kElements).ok());
    tiers.back()->Warm();
  }
  EXPECT_LT(ResidentBytes(), before + 8 * kMiB) << "16 tiers of " << tiers[0]->bytes() << " bytes";
}

INSTANTIATE_TEST_SUITE_P(Tiers, TierConformance,
                         ::testing::Values(TierCase{"Dram", 0, true}, TierCase{"Nvme4", 4, false},
                                           TierCase{"Nvme4AtOnce", 4, true},
                                           TierCase{"Nvme5", 5, false},
                                           TierCase{"Nvme11", 11, true},
                                           TierCase{"Nvme40", 40, false}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace ballast::server
