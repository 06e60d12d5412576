// The checksums that Contributions gives the log, of frames and of sums, against the bytes; and the
// log's reader with bytes that changed between the two.
#include "server/extents/contributions.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <tuple>

#include "common/io/memory_disk.h"
#include "server/round/job_plan.h"
#include "server/simd/isa.h"
#include "tests/server/round/fsm_fixture.h"
#include "tests/server/round/plans.h"

namespace ballast::server {
namespace {

using testing::FsmFixture;
using testing::kFsmChunk;
using testing::MakeFrame;
using testing::MakePlan;

JobPlan PlanOf(uint32_t world, DType dtype, bool durable = true) {
  JobPlan plan = MakePlan({200, 301}, world, {0});
  for (auto& tensor : plan.spec.tensors) tensor.dtype = dtype;
  return durable ? testing::Durable(plan) : plan;
}

// A round at one server: frames and complete extents as the driver handles them.
class Round : public FsmFixture {
 public:
  explicit Round(const JobPlan& plan)
      : FsmFixture(plan),
        contributions_(fsm_.layout(), fsm_.owned(), plan.epoch, /*window_extents=*/64) {
    for (const uint32_t extent : fsm_.owned()) {
      for (const ChunkRange& range : Ranges(extent)) {
        Deliver(FrameOf(FrameKind::kInit, 0, extent, range));
      }
    }
  }
  std::vector<ChunkRange> Ranges(uint32_t extent, const std::vector<bool>& presence = {}) const {
    return ChunkRanges(fsm_.layout(), extent, kFsmChunk, presence);
  }
  std::string Random(size_t bytes) {
    std::string text(bytes, '\0');
    for (char& c : text) c = static_cast<char>(rng_());
    return text;
  }
  // Stores a frame of these bytes and says whether its checksum fits `header`.
  bool Store(FrameHeader header, const std::string& bytes) {
    const Payload::Pieces pieces = {{bytes.data(), 3}, {bytes.data() + 3, bytes.size() - 3}};
    const auto crc = contributions_.Store(fsm_.layout(), header, Payload(pieces, nullptr));
    EXPECT_TRUE(crc.ok());
    return *crc == header.crc32c;
  }
  FrameHeader FrameOf(FrameKind kind, uint32_t slot, uint32_t extent, ChunkRange range) const {
    FrameHeader header = MakeFrame(plan_, kind, slot, fsm_.round(), extent, range);
    header.dtype = fsm_.layout().extents()[extent].dtype;
    return header;
  }
  void Take(uint32_t slot, uint32_t extent, ChunkRange range) {
    FrameHeader header = FrameOf(FrameKind::kGradient, slot, extent, range);
    const std::string bytes = Random(range.length_bytes);
    header.crc32c = Crc32c(bytes.data(), bytes.size(), IdentityCrc(header));
    ASSERT_EQ(fsm_.RefusalOf(header), std::nullopt);
    ASSERT_TRUE(Store(header, bytes));
    Feed(FrameInput{header});
  }
  void TakeAll(uint32_t slot, uint32_t extent, const std::vector<bool>& presence = {}) {
    std::vector<ChunkRange> ranges = Ranges(extent, presence);
    std::shuffle(ranges.begin(), ranges.end(), rng_);
    for (const ChunkRange& range : ranges) Take(slot, extent, range);
  }
  // Sums the complete extent, each tile by itself.
  GradientView Reduce(uint32_t extent) {
    const reduce::KernelTable& kernels = reduce::Kernels(simd::DetectIsa());
    const auto work = contributions_.MakeWork(fsm_, extent);
    EXPECT_TRUE(work.ok());
    for (size_t tile = (*work)->norms.size(); tile-- > 0;) {
      ReduceTile(kernels, work->get(), tile);
    }
    contributions_.OnReduced(**work);
    return contributions_.Gradient(fsm_.layout(), extent);
  }
  std::optional<uint32_t> Known(uint32_t extent) const {
    return contributions_.Checksum(fsm_.layout(), extent);
  }

  std::mt19937 rng_{5};
  Contributions contributions_;
};

uint32_t Fresh(const GradientView& gradient) { return Crc32c(gradient.data, gradient.bytes); }

class ContributionsTest : public ::testing::TestWithParam<std::tuple<uint32_t, DType>> {};

INSTANTIATE_TEST_SUITE_P(, ContributionsTest,
                         ::testing::Combine(::testing::Values(1, 2, 4),
                                            ::testing::Values(DType::kF32, DType::kBF16,
                                                              DType::kF16)));

TEST_P(ContributionsTest, TheChecksumIsThatOfTheBytesThatAreStepped) {
  const auto [world, dtype] = GetParam();
  Round round(PlanOf(world, dtype));
  for (uint32_t slot = 0; slot < world; ++slot) round.Begin(slot);
  for (const uint32_t extent : round.fsm_.owned()) {
    for (uint32_t slot = 0; slot < world; ++slot) round.TakeAll(slot, extent);
    const GradientView gradient = round.Reduce(extent);
    EXPECT_EQ(gradient.dtype, world == 1 ? dtype : DType::kF32);
    EXPECT_EQ(round.Known(extent), Fresh(gradient)) << "extent " << extent;
  }
}

// Where a tensor has no gradient, the sum has zeros that no frame brought.
TEST_P(ContributionsTest, SumsOverAbsentTensorsHaveTheirOwn) {
  const auto [world, dtype] = GetParam();
  const std::vector<bool> presence = {true, false};
  Round round(PlanOf(world, dtype));
  for (uint32_t slot = 0; slot < world; ++slot) round.Begin(slot, presence);
  const uint32_t extent = 1;  // of both tensors
  for (uint32_t slot = 0; slot < world; ++slot) round.TakeAll(slot, extent, presence);
  const GradientView gradient = round.Reduce(extent);
  EXPECT_EQ(gradient.dtype, DType::kF32);
  EXPECT_EQ(round.Known(extent), Fresh(gradient));
}

TEST(Contributions, AFrameThatReplacesADamagedOneReplacesItsChecksum) {
  for (const uint32_t world : {1, 2}) {
    Round round(PlanOf(world, DType::kBF16));
    for (uint32_t slot = 0; slot < world; ++slot) round.Begin(slot);
    const uint32_t extent = 0;
    for (const ChunkRange& range : round.Ranges(extent)) {
      EXPECT_FALSE(round.Store(round.FrameOf(FrameKind::kGradient, 0, extent, range),
                               round.Random(range.length_bytes)));
    }
    for (uint32_t slot = 0; slot < world; ++slot) round.TakeAll(slot, extent);
    EXPECT_EQ(round.Known(extent), Fresh(round.Reduce(extent))) << world;
  }
}

TEST(Contributions, RegistersUsedAgainStartWithoutChecksums) {
  Round round(PlanOf(1, DType::kBF16));
  round.Begin(0);
  round.TakeAll(0, 0);
  const GradientView before = round.Reduce(0);
  EXPECT_EQ(round.Known(0), Fresh(before));
  // As a restart does, and as the end of a round.
  const LoggedExtent logged{.extent = 0, .dtype = DType::kBF16, .bytes = before.bytes};
  ASSERT_TRUE(round.contributions_.Restore(round.fsm_.layout(), {0}, logged).ok());
  EXPECT_EQ(round.Known(0), std::nullopt);
}

TEST(Contributions, SumsWithoutALogHaveNone) {
  Round round(PlanOf(2, DType::kF32, /*durable=*/false));
  for (const uint32_t slot : {0, 1}) round.Begin(slot);
  for (const uint32_t slot : {0, 1}) round.TakeAll(slot, 0);
  round.Reduce(0);
  EXPECT_EQ(round.Known(0), std::nullopt);
}

// A byte that changes in memory after its frame was checked, or its sum was formed, does not fit
// the checksum in the log.
TEST(Contributions, ABitThatFlipsBeforeTheLogWritesItIsFoundByItsReader) {
  for (const uint32_t world : {1, 2}) {
    MemoryDisk disk;
    ASSERT_TRUE(disk.MakeDirectory("log").ok());
    const auto log = GradientLog::Create(&disk, "log", {.segment_bytes = 16 * kPageBytes});
    ASSERT_TRUE(log.ok()) << log.status();
    Round round(PlanOf(world, DType::kBF16));
    for (uint32_t slot = 0; slot < world; ++slot) round.Begin(slot);
    for (const uint32_t extent : {0, 1}) {
      for (uint32_t slot = 0; slot < world; ++slot) round.TakeAll(slot, extent);
      const GradientView gradient = round.Reduce(extent);
      if (extent == 1) const_cast<char*>(static_cast<const char*>(gradient.data))[9] ^= 4;
      ASSERT_TRUE((*log)
                      ->AppendExtent({.at = {.round = 1,
                                             .extent = extent,
                                             .dtype = gradient.dtype,
                                             .bytes = gradient.bytes},
                                      .data = gradient.data,
                                      .data_crc = round.Known(extent),
                                      .owner = gradient.owner})
                      .ok());
    }
    ASSERT_TRUE((*log)->Sync().ok());
    const auto& extents = (*log)->rounds().at(1).extents;
    const Arena to = *Arena::Create(kPageBytes);
    EXPECT_TRUE((*log)->ReadExtent(extents.at(0), to.data()).ok());
    EXPECT_TRUE(absl::IsDataLoss((*log)->ReadExtent(extents.at(1), to.data()))) << world;
  }
}

}  // namespace
}  // namespace ballast::server
