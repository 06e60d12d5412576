// Trainers of a durable job that vanish and are started again, with whole servers and the real
// client in one process: the job's weights have the bits of an undisturbed run.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ballast/client.h"
#include "ballast/error.h"
#include "tests/e2e/raw_trainer.h"
#include "tests/e2e/trainer.h"

namespace ballast::server {
namespace {

using client::Resume;

constexpr uint64_t kRounds = 10;

Trainer TrainerOf(const LocalServers& servers, const std::string& job, uint32_t slot, Resume resume,
                  uint32_t seed) {
  client::JobOptions options = SmallJob(servers.address(0), job, slot, 2);
  options.resume = resume;
  return Trainer(std::move(options), seed);
}

// Both slots at the same time.
void Both(const std::function<void(uint32_t)>& act) {
  std::thread other([&] { act(1); });
  act(0);
  other.join();
}

struct World {
  World(const LocalServers& servers, const std::string& job, Resume resume, uint32_t seed = 1)
      : slots{TrainerOf(servers, job, 0, resume, seed), TrainerOf(servers, job, 1, resume, seed)} {
    Both([&](uint32_t slot) {
      const absl::Status attached = slots[slot].Attach();
      ASSERT_TRUE(attached.ok()) << "slot " << slot << ": " << attached;
    });
  }
  void RunTo(uint64_t last) {
    Both([&](uint32_t slot) { slots[slot].RunTo(last); });
  }
  Trainer slots[2];
};

TEST(Replace, ATrainerThatVanishesInARoundIsReplaced) {
  LocalServers servers(2);
  World calm(servers, "calm", Resume::kNever);
  calm.RunTo(kRounds);

  World world(servers, "replaced", Resume::kNever);
  world.RunTo(4);
  std::thread survivor([&] { world.slots[0].RunTo(kRounds); });
  ASSERT_TRUE(world.slots[1].Begin().ok());
  world.slots[1].Vanish();
  Trainer newcomer = TrainerOf(servers, "replaced", 1, Resume::kAuto, 2);
  const absl::Status attached = newcomer.Attach();
  if (attached.ok()) {
    EXPECT_TRUE(newcomer.client().resumed());
    const uint64_t round = newcomer.client().round();
    EXPECT_TRUE(round == 5 || round == 6) << round;
    EXPECT_EQ(newcomer.client().user_state(), newcomer.StateOf(round - 1));
    EXPECT_EQ(newcomer.client().opt_step(), round - 1);
    newcomer.RunTo(kRounds);
  } else {
    ADD_FAILURE() << attached;
    world.slots[0].client().Abort();
  }
  survivor.join();
  EXPECT_TRUE(world.slots[0].weights() == calm.slots[0].weights());
  EXPECT_TRUE(newcomer.weights() == calm.slots[0].weights());
}

TEST(Replace, AllTrainersMayBeReplaced) {
  LocalServers servers(2);
  World calm(servers, "calm", Resume::kNever);
  calm.RunTo(kRounds);

  World world(servers, "replaced", Resume::kNever);
  world.RunTo(5);
  for (Trainer& trainer : world.slots) trainer.Vanish();
  World next(servers, "replaced", Resume::kMust, 2);
  for (Trainer& trainer : next.slots) {
    EXPECT_EQ(trainer.client().round(), 6u);
    EXPECT_EQ(trainer.client().user_state(), trainer.StateOf(5));
  }
  next.RunTo(kRounds);
  for (const Trainer& trainer : next.slots) {
    EXPECT_TRUE(trainer.weights() == calm.slots[0].weights());
  }
}

TEST(Replace, AJobThatAllHaveLeftIsGoneOnWithFromWhereTheyWere) {
  LocalServers servers(2);
  World world(servers, "ended", Resume::kNever);
  world.RunTo(3);
  Both([&](uint32_t slot) { ASSERT_TRUE(world.slots[slot].client().Leave().ok()); });
  World next(servers, "ended", Resume::kAuto, 2);
  for (Trainer& trainer : next.slots) {
    EXPECT_EQ(trainer.client().round(), 4u);
    EXPECT_EQ(trainer.client().user_state(), trainer.StateOf(3));
  }
}

TEST(Replace, AUserStateThatIsTooLargeIsRefusedWithBothSizes) {
  LocalServers servers(1);
  World world(servers, "wordy", Resume::kNever);
  EXPECT_EQ(world.slots[0].client().user_state(), "");
  const absl::Status refused = world.slots[0].client().SetUserState(std::string(65537, 'x'));
  EXPECT_EQ(client::GetErrorInfo(refused).reason_name, "BAD_ARGUMENT");
  EXPECT_NE(refused.message().find("65537 bytes, the limit is 65536"), std::string::npos);
  EXPECT_TRUE(world.slots[0].client().SetUserState(std::string(65536, 'x')).ok());
}

TEST(Replace, AJobThatNobodyHasStartedCannotBeGoneOnWith) {
  LocalServers servers(2);
  Trainer trainer = TrainerOf(servers, "unknown", 1, Resume::kMust, 1);
  EXPECT_EQ(client::GetErrorInfo(trainer.Attach()).reason_name, "UNKNOWN_JOB");
}

}  // namespace
}  // namespace ballast::server
