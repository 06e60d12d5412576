// Trainers whose gradients are scattered: each pushes the sums of its own extents and receives the
// weights of those, and the state has the bits of the servers' own sum, also when the world
// changes.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "ballast/client.h"
#include "ballast/error.h"
#include "tests/e2e/processes.h"
#include "tests/e2e/trainer.h"

namespace ballast::server {
namespace {

// Each acts on a thread of its own.
void Together(const std::vector<std::function<void()>>& acts) {
  std::vector<std::thread> threads;
  for (const auto& act : acts) threads.emplace_back(act);
  for (std::thread& thread : threads) thread.join();
}

client::JobOptions ScatteredJob(const ServerProcesses& servers, uint32_t slot) {
  client::JobOptions options = SmallJob(servers.address(0), "job", slot, 2);
  options.gradients = client::Gradients::kScattered;
  options.variable_world = true;
  options.resume = client::Resume::kAuto;
  options.extent_elements = 64;
  return options;
}

uint64_t WireBytes() {
  uint64_t bytes = 0;
  for (const int64_t size : kModelSizes) bytes += static_cast<uint64_t>(size) * 4;
  return bytes;
}

TEST(Scattered, EachTrainerPushesAndReceivesHalfWithTheBitsOfTheServersSum) {
  ServerProcesses servers(BALLASTD_PATH, 2, {"timing.lease=3s"});
  Trainer zero(ScatteredJob(servers, 0)), one(ScatteredJob(servers, 1));
  Together({[&] { ASSERT_TRUE(zero.Attach().ok()); }, [&] { ASSERT_TRUE(one.Attach().ok()); }});
  zero.SumOver({0, 1}), one.SumOver({0, 1});
  const client::TransferCounters before = zero.client().counters();
  Together({[&] { zero.RunTo(5); }, [&] { one.RunTo(5); }});
  std::vector<std::vector<uint32_t>> contributors(5, {0, 1});
  EXPECT_EQ(DifferingBits(&one.client(), contributors), 0u);
  const client::TransferCounters after = zero.client().counters();
  const double whole = 5.0 * static_cast<double>(WireBytes());
  EXPECT_NEAR(static_cast<double>(after.payload_up_bytes - before.payload_up_bytes) / whole, 0.5,
              0.01);
  EXPECT_NEAR(static_cast<double>(after.payload_down_bytes - before.payload_down_bytes) / whole,
              0.5, 0.01);
  for (const client::DealtExtent& extent : zero.client().dealt()) EXPECT_LT(extent.slot, 2u);

  // One leaves: the deal is another one, and the other pushes all.
  ASSERT_TRUE(one.client().Leave().ok());
  zero.SumOver({0});
  zero.RunTo(8);
  contributors.resize(8, {0});
  EXPECT_EQ(DifferingBits(&zero.client(), contributors), 0u);
}

TEST(Scattered, ServersThatDieInARoundTakeTheSharesAgain) {
  ServerProcesses servers(BALLASTD_PATH, 2, {"timing.lease=30s"});
  Trainer zero(ScatteredJob(servers, 0)), one(ScatteredJob(servers, 1));
  Together({[&] { ASSERT_TRUE(zero.Attach().ok()); }, [&] { ASSERT_TRUE(one.Attach().ok()); }});
  zero.SumOver({0, 1}), one.SumOver({0, 1});
  Together({[&] { zero.RunTo(6); }, [&] { one.RunTo(6); }, [&] { servers.Strike(1); }});
  Together({[&] { zero.RunTo(9); }, [&] { one.RunTo(9); }, [&] { servers.Strike(0); }});
  EXPECT_EQ(DifferingBits(&zero.client(), std::vector<std::vector<uint32_t>>(9, {0, 1})), 0u);
}

TEST(Scattered, SumsOfOtherMembersEndTheStepAndTheNextOneContinues) {
  ServerProcesses servers(BALLASTD_PATH, 1, {"timing.lease=3s"});
  Trainer zero(ScatteredJob(servers, 0)), one(ScatteredJob(servers, 1));
  Together({[&] { ASSERT_TRUE(zero.Attach().ok()); }, [&] { ASSERT_TRUE(one.Attach().ok()); }});
  zero.SumOver({0, 1}), one.SumOver({0, 1});
  Together({[&] { zero.RunTo(2); }, [&] { one.RunTo(2); }});
  zero.client().SetSumsOf(zero.client().epoch());
  ASSERT_TRUE(zero.Begin().ok());
  one.Vanish();
  const absl::Status status = zero.Finish();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_EQ(client::GetErrorInfo(status).reason_name, "STALE_EPOCH") << status;
  EXPECT_NE(std::string(status.message()).find("Nothing of round 3 was applied"), std::string::npos)
      << status;

  // The contribution of one is gone; zero alone is in the new epoch.
  EXPECT_EQ(zero.Begin().code(), absl::StatusCode::kFailedPrecondition) << "the old sums again";
  zero.client().SetSumsOf(zero.client().epoch());
  zero.SumOver({0});
  zero.RunTo(4);
  EXPECT_EQ(DifferingBits(&zero.client(), {{0, 1}, {0, 1}, {0}, {0}}), 0u);
}

}  // namespace
}  // namespace ballast::server
