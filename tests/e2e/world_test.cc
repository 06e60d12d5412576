// Worlds that change while a job runs, with servers in processes of their own, killed in between:
// the state has the bits of a plain loop over the same contributions.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ballast/client.h"
#include "ballast/error.h"
#include "tests/e2e/processes.h"
#include "tests/e2e/trainer.h"

namespace ballast::server {
namespace {

const std::string kBallastd = BALLASTD_PATH;

// Each acts on a thread of its own.
void Together(const std::vector<std::function<void()>>& acts) {
  std::vector<std::thread> threads;
  for (const auto& act : acts) threads.emplace_back(act);
  for (std::thread& thread : threads) thread.join();
}

client::JobOptions VariableJob(const ServerProcesses& servers, uint32_t slot, uint32_t world) {
  client::JobOptions options = SmallJob(servers.address(0), "job", slot, world);
  options.variable_world = true;
  options.resume = client::Resume::kAuto;
  return options;
}

// Who contributed to the rounds 1, 2, ...: whoever finished the round was in its epoch.
std::vector<std::vector<uint32_t>> ContributorsOf(
    const std::vector<std::pair<uint32_t, const Trainer*>>& trainers) {
  std::map<uint64_t, std::vector<uint32_t>> by_round;
  std::map<uint64_t, uint32_t> worlds;
  for (const auto& [slot, trainer] : trainers) {
    for (const auto& [round, world] : trainer->worlds()) {
      by_round[round].push_back(slot);
      worlds[round] = world;
    }
  }
  std::vector<std::vector<uint32_t>> contributors;
  for (auto& [round, slots] : by_round) {
    std::sort(slots.begin(), slots.end());
    EXPECT_EQ(slots.size(), worlds[round]) << "round " << round;
    EXPECT_EQ(round, contributors.size() + 1);
    contributors.push_back(slots);
  }
  return contributors;
}

// Two trainers, then one, then three, then two again, one of whom was killed; every server is
// killed at least once while the world is smaller, larger, and changing.
TEST(World, TwoThenOneThenThreeTrainersWithServersKilledBetween) {
  ServerProcesses servers(kBallastd, 2, {"timing.lease=3s"});
  std::set<uint32_t> newcomers;
  client::JobOptions options = VariableJob(servers, 0, 2);
  options.on_pause = [&newcomers](const client::Pause& pause) {
    newcomers.insert(pause.joined.begin(), pause.joined.end());
  };
  Trainer zero(options), one(VariableJob(servers, 1, 2));
  Together({[&] { ASSERT_TRUE(zero.Attach().ok()); }, [&] { ASSERT_TRUE(one.Attach().ok()); }});
  Together({[&] { zero.RunTo(4); }, [&] { one.RunTo(4); }});
  EXPECT_EQ(zero.client().world(), 2u);

  // 2 -> 1: one leaves; the others' round continues without it.
  ASSERT_TRUE(one.client().Leave().ok());
  Together({[&] { zero.RunTo(8); }, [&] { servers.Strike(1); }});
  EXPECT_EQ(zero.client().world(), 1u);
  EXPECT_EQ(zero.worlds().at(8), 1u);

  // 1 -> 3: its seat is taken by a new process, and a third joins. The home is killed meanwhile.
  Trainer again(VariableJob(servers, 1, 3), 2), two(VariableJob(servers, 2, 3), 3);
  Together({[&] { ASSERT_TRUE(again.Attach().ok()); }, [&] { ASSERT_TRUE(two.Attach().ok()); },
            [&] { servers.Strike(0); }});
  EXPECT_EQ(std::max(again.client().round(), two.client().round()), 9u);
  Together({[&] { zero.RunTo(14); }, [&] { again.RunTo(14); }, [&] { two.RunTo(14); },
            [&] { servers.Strike(1); }});
  EXPECT_EQ(zero.worlds().at(14), 3u);
  EXPECT_EQ(newcomers, (std::set<uint32_t>{1, 2}));  // into empty seats

  // 3 -> 2: one dies in the middle of a round. Its lease runs out, and the round is run again.
  ASSERT_TRUE(two.Begin().ok());
  two.Vanish();
  Together({[&] { zero.RunTo(20); }, [&] { again.RunTo(20); }});
  EXPECT_EQ(zero.worlds().at(20), 2u);

  if (zero.worlds().at(15) == 3) two.Contributed(15, 3);  // It died after its last push.
  const auto contributors = ContributorsOf({{0, &zero}, {1, &one}, {1, &again}, {2, &two}});
  ASSERT_EQ(contributors.size(), 20u);
  EXPECT_EQ(DifferingBits(&zero.client(), contributors), 0u);
  EXPECT_EQ(DifferingBits(zero.weights(), again.weights()), 0u);
}

// A trainer as a process of its own, which can be stopped.
class TrainerProcess : public Child {
 public:
  TrainerProcess(const ServerProcesses& servers, uint32_t slot, const std::string& world)
      : Child({TRAINER_PATH, servers.address(0), "job", std::to_string(slot), "2", world}) {}
};

const std::vector<std::string> kImpatient = {"timing.heartbeat_interval=100ms",
                                             "timing.report_after=700ms", "timing.lease=3s"};

bool Told(const std::vector<client::Pause>& pauses, client::Pause::Kind kind, uint32_t slot) {
  return std::any_of(pauses.begin(), pauses.end(), [&](const client::Pause& pause) {
    const bool left = std::count(pause.left.begin(), pause.left.end(), slot) != 0;
    return pause.kind == kind && (left || std::count(pause.slots.begin(), pause.slots.end(), slot));
  });
}

TEST(World, AStoppedTrainerIsReportedGoneOnWithoutAndFencedWhenItWakesUp) {
  ServerProcesses servers(kBallastd, 2, kImpatient);
  std::vector<client::Pause> pauses;
  client::JobOptions options = VariableJob(servers, 0, 2);
  options.on_pause = [&pauses](const client::Pause& pause) { pauses.push_back(pause); };
  Trainer zero(options);
  TrainerProcess one(servers, 1, "variable");
  ASSERT_TRUE(zero.Attach().ok());
  zero.RunTo(5);
  ASSERT_TRUE(one.ReadUntil("round 4"));
  one.Kill(SIGSTOP);
  zero.RunTo(12);
  EXPECT_EQ(zero.worlds().at(12), 1u);
  EXPECT_TRUE(Told(pauses, client::Pause::Kind::kTrainerLost, 1));
  EXPECT_TRUE(Told(pauses, client::Pause::Kind::kReplaced, 1));
  one.Kill(SIGCONT);
  EXPECT_TRUE(one.ReadUntil("WRONG_INCARNATION"));
  EXPECT_EQ(one.Wait(), 3);
  zero.RunTo(15);

  std::vector<std::vector<uint32_t>> contributors;
  for (const auto& [round, world] : zero.worlds()) {
    contributors.push_back(world == 2 ? std::vector<uint32_t>{0, 1} : std::vector<uint32_t>{0});
  }
  EXPECT_EQ(DifferingBits(&zero.client(), contributors), 0u);
}

TEST(World, TheSeatOfAStoppedTrainerGoesToAnotherWhenItsLeaseIsOut) {
  ServerProcesses servers(kBallastd, 2, kImpatient);
  client::JobOptions options = VariableJob(servers, 0, 2);
  options.variable_world = false;
  Trainer zero(options);
  TrainerProcess one(servers, 1, "fixed");
  ASSERT_TRUE(zero.Attach().ok());
  zero.RunTo(5);
  one.Kill(SIGSTOP);
  options.slot = 1;
  Trainer other(options, 2);
  Together({[&] { zero.RunTo(12); },
            [&] {
              const absl::Status attached = other.Attach();
              ASSERT_TRUE(attached.ok()) << attached;
              other.RunTo(12);
            }});
  one.Kill(SIGCONT);
  EXPECT_TRUE(one.ReadUntil("WRONG_INCARNATION"));
  EXPECT_EQ(one.Wait(), 3);
  Together({[&] { zero.RunTo(15); }, [&] { other.RunTo(15); }});
  EXPECT_EQ(DifferingBits(&zero.client(), std::vector<std::vector<uint32_t>>(15, {0, 1})), 0u);
}

}  // namespace
}  // namespace ballast::server
