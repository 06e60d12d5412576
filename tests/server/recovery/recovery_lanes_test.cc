// Recover with one thread and with several gives the same state, the same result and the same
// error.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "common/base/reason.h"
#include "common/io/arena.h"
#include "common/io/memory_disk.h"
#include "server/optim/dispatch.h"
#include "server/recovery/recovery.h"
#include "server/simd/isa.h"
#include "server/tier/image_copy.h"
#include "tests/server/round/plans.h"

namespace ballast::server {
namespace {

using testing::LayoutOf;
using testing::MakePlan;

constexpr char kDirectory[] = "/job";
constexpr uint32_t kCheckpointRounds = 2;

// A job of one server, one decided round (skipped, so nothing is stepped), and images of random
// states: extent e holds version 1 and, when e is even, also version 2.
class RecoveryLanes : public ::testing::Test {
 protected:
  RecoveryLanes()
      : plan_(MakePlan({3000}, 1, {0})),
        layout_(LayoutOf(plan_)),
        options_(StorageOptionsOf(plan_, layout_, 0, kCheckpointRounds)) {
    for (uint32_t e = 0; e < layout_.extents().size(); ++e) owned_.push_back(e);
  }

  void SetUp() override {
    auto storage = JobStorage::Create(&disk_, kDirectory, options_);
    ASSERT_TRUE(storage.ok()) << storage.status();
    const PreparedRecord prepared{.epoch = 1, .round = 1};
    ASSERT_TRUE((*storage)->log()->AppendPrepared(prepared).ok());
    ASSERT_TRUE((*storage)->log()->AppendDecision({.epoch = 1, .round = 1}).ok());
    ASSERT_TRUE((*storage)->log()->Sync().ok());
    for (const uint64_t version : {1, 2}) {
      for (const uint32_t e : owned_) {
        if (version == 1 || e % 2 == 0) WriteImage((*storage)->images(), e, version);
      }
      ASSERT_TRUE((*storage)->images()->Sync().ok());
    }
  }

  void WriteImage(ImageFile* images, uint32_t extent, uint64_t version) {
    const Arena image = *Arena::Create(kPageBytes);
    float* const values = reinterpret_cast<float*>(image.data());
    const uint32_t count = layout_.extents()[extent].elements * 3;
    for (uint32_t i = 0; i < count; ++i) {
      values[i] = static_cast<float>(extent * 1000000 + version * 1000 + i);
    }
    ASSERT_TRUE(images->Write(extent, version, image.data()).ok());
  }

  absl::StatusOr<Recovered> RecoverInto(ModelState* state, int lanes) {
    auto storage = JobStorage::Open(&disk_, kDirectory, options_);
    if (!storage.ok()) return storage.status();
    return Recover(plan_, layout_, owned_, storage->get(), state, lanes);
  }
  ModelState EmptyState() const {
    return *MakeModelState({.shape = StateShapeOf(plan_.spec)}, layout_, owned_,
                           &optim::Kernels(simd::Isa::kScalar));
  }
  std::string StateOf(ModelState* of) const {
    std::string state;
    for (const uint32_t e : owned_) {
      const uint32_t elements = layout_.extents()[e].elements;
      std::string image(size_t{elements} * 12, '\0');
      CopyToImage(of->store.State(e), elements, StateShapeOf(plan_.spec), image.data());
      state += image;
    }
    return state;
  }
  // Turns a bit in every copy of the first value that the extent's images hold.
  void DamageImagesOf(uint32_t extent) {
    auto file = disk_.Open(std::string(kDirectory) + "/slots", {});
    ASSERT_TRUE(file.ok());
    std::string bytes((*file)->Size().value(), '\0');
    ASSERT_TRUE((*file)->ReadAt(0, bytes.size(), bytes.data()).ok());
    for (const uint64_t version : {1, 2}) {
      const float value = static_cast<float>(extent * 1000000 + version * 1000);
      const std::string wanted(reinterpret_cast<const char*>(&value), sizeof(value));
      const size_t at = bytes.find(wanted);
      if (at == std::string::npos) continue;
      ASSERT_TRUE(disk_.FlipBit(std::string(kDirectory) + "/slots", at, 3).ok());
    }
  }

  const JobPlan plan_;
  const Layout layout_;
  const StorageOptions options_;
  std::vector<uint32_t> owned_;
  MemoryDisk disk_;
};

TEST_F(RecoveryLanes, GiveTheSameState) {
  ModelState one = EmptyState();
  const auto alone = RecoverInto(&one, 1);
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ(alone->fsm.round, 2);
  EXPECT_EQ(alone->replayed_rounds, 1);
  ASSERT_EQ(alone->image_versions.size(), owned_.size());
  EXPECT_EQ(alone->image_versions[0], 2);
  EXPECT_EQ(alone->image_versions[1], 1);
  EXPECT_GT(owned_.size(), 8);
  for (const int lanes : {2, 5, 100}) {
    ModelState brought = EmptyState();
    const auto recovered = RecoverInto(&brought, lanes);
    ASSERT_TRUE(recovered.ok()) << recovered.status();
    EXPECT_EQ(recovered->image_versions, alone->image_versions);
    EXPECT_EQ(recovered->image_bytes, alone->image_bytes);
    EXPECT_EQ(recovered->replayed_rounds, alone->replayed_rounds);
    EXPECT_EQ(StateOf(&brought), StateOf(&one)) << lanes << " lanes";
  }
  float first = 0;
  std::memcpy(&first, StateOf(&one).data(), sizeof(first));
  EXPECT_EQ(first, 2000);
}

TEST_F(RecoveryLanes, NameTheSameExtentWhenSeveralAreLost) {
  for (const uint32_t extent : {5, 6, 11}) DamageImagesOf(extent);
  for (const int lanes : {1, 2, 5, 100}) {
    ModelState brought = EmptyState();
    const auto recovered = RecoverInto(&brought, lanes);
    ASSERT_EQ(recovered.status().code(), absl::StatusCode::kDataLoss) << lanes << " lanes";
    EXPECT_NE(recovered.status().message().find("extent 5 cannot be brought to round 2"),
              std::string::npos)
        << recovered.status();
  }
}

// The log's policy state has the version that the job's specification asks for, or it is not the
// log of this job.
TEST_F(RecoveryLanes, ThePolicyComesFromTheLogAndMustBeThatOfTheJob) {
  JobPlan plan = plan_;
  plan.spec.policy.loss_scaler = LossScalerConfig{};
  const auto recover = [&](const JobPlan& of) {
    ModelState brought = EmptyState();
    auto storage = JobStorage::Open(&disk_, kDirectory, options_);
    EXPECT_TRUE(storage.ok()) << storage.status();
    return Recover(of, layout_, owned_, storage->get(), &brought, 1);
  };
  const absl::Status lost = recover(plan).status();
  EXPECT_EQ(ReasonOf(lost), Reason::kStateLost) << lost;
  EXPECT_NE(lost.message().find("the log's policy state has version 1, the job's specification "
                                "asks for 2"),
            std::string::npos)
      << lost;
  PolicyState policy = StartPolicy(plan.spec);
  policy.loss_scale = 32;
  policy.scaler_iteration = 7;
  policy.rates = {{.lr = 0.5}};
  {
    auto storage = JobStorage::Open(&disk_, kDirectory, options_);
    ASSERT_TRUE(storage.ok()) << storage.status();
    const PreparedRecord prepared{.epoch = 1, .round = 2, .policy = policy};
    ASSERT_TRUE((*storage)->log()->AppendPrepared(prepared).ok());
    DecisionRecord decision{.epoch = 1, .round = 2};
    decision.decision.policy = policy;
    ASSERT_TRUE((*storage)->log()->AppendDecision(decision).ok());
    ASSERT_TRUE((*storage)->log()->Sync().ok());
  }
  const auto recovered = recover(plan);
  ASSERT_TRUE(recovered.ok()) << recovered.status();
  EXPECT_EQ(recovered->fsm.policy, policy);
  EXPECT_EQ(ReasonOf(recover(plan_).status()), Reason::kStateLost);
}

}  // namespace
}  // namespace ballast::server
