// Dynamic loss scale and schedule on two servers with two trainers, through kills of both servers
// and a change of both trainers: each report, and each bit of the state, is that of a plain loop.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ballast/client.h"
#include "ballast/error.h"
#include "common/policy/loss_scaler.h"
#include "common/policy/schedule.h"
#include "tests/e2e/processes.h"
#include "tests/e2e/trainer.h"

namespace ballast::server {
namespace {

constexpr uint64_t kRounds = 60;
constexpr uint64_t kChange = 45;  // after this round both trainers are replaced
const std::set<uint64_t> kOverflows = {3, 4, 9, 17, 30, 31, 45};

const LossScalerConfig kScaler = {.initial_scale_power = 6, .loss_scale_window = 2};
const WarmupLR kWarmup = {.warmup_max_lr = PerGroup(0.01), .warmup_num_steps = 8};

client::JobOptions OptionsOf(const ServerProcesses& servers, const std::string& job,
                             uint32_t slot) {
  client::JobOptions options = SmallJob(servers.address(0), job, slot, 2);
  client::DynamicLossScale scale;
  scale.initial_scale_power = kScaler.initial_scale_power;
  scale.loss_scale_window = kScaler.loss_scale_window;
  options.policy.loss_scale = scale;
  options.policy.schedule.type = "WarmupLR";
  options.policy.schedule.arguments = {{"warmup_max_lr", 0.01}, {"warmup_num_steps", 8.0}};
  return options;
}

// Both slots at the same time.
void Both(const std::function<void(uint32_t)>& act) {
  std::thread other([&] { act(1); });
  act(0);
  other.join();
}

struct World {
  World(const ServerProcesses& servers, const std::string& job, client::Resume resume) {
    for (uint32_t slot = 0; slot < 2; ++slot) {
      client::JobOptions options = OptionsOf(servers, job, slot);
      options.resume = resume;
      slots.push_back(std::make_unique<Trainer>(options));
      if (slot == 1) slots.back()->Spoil(kOverflows);
    }
    Both([&](uint32_t slot) {
      const absl::Status attached = slots[slot]->Attach();
      ASSERT_TRUE(attached.ok()) << "slot " << slot << ": " << attached;
    });
  }
  void RunTo(uint64_t last) {
    Both([&](uint32_t slot) { slots[slot]->RunTo(last); });
  }
  std::vector<std::unique_ptr<Trainer>> slots;
};

// The same rounds one after the other: the trainers' reports, and the state.
struct Loop {
  void RunTo(uint64_t last) {
    for (; round <= last; ++round) Step();
  }
  void Step() {
    const GroupRates own{.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999};
    rates = RatesAt(kWarmup, index, 0, own, PolicyProfile::kExact);
    const bool overflow = kOverflows.count(round) != 0;
    scaler = StepLossScaler(kScaler, scaler, overflow).state;
    skipped_last = overflow;
    if (overflow) return;
    ++index;
    client::Hyper hyper = client::AdamWHyper();
    hyper[0] = rates.lr;
    // Scales are powers of two: to multiply by one and divide again leaves the bits.
    state.Step({GradientsOf(0, round), GradientsOf(1, round)}, 0.5f, hyper,
               std::vector<bool>(kModelSizes.size(), true));
  }
  // `knows_why`: a server knows the newest decision.
  void Expect(const client::Policy& policy, bool knows_why = true) const {
    EXPECT_EQ(policy.loss_scale, scaler.scale) << round;
    EXPECT_EQ(policy.schedule_index, index) << round;
    EXPECT_EQ(policy.skipped_rounds, scaler.skipped) << round;
    EXPECT_EQ(policy.last_skipped, skipped_last) << round;
    EXPECT_EQ(policy.hysteresis_left, scaler.hysteresis_left) << round;
    EXPECT_EQ(policy.scaler_iteration, scaler.iteration) << round;
    EXPECT_EQ(policy.last_overflow, scaler.last_overflow) << round;
    ASSERT_EQ(policy.rates.size(), 1u) << round;
    EXPECT_EQ(policy.rates[0].lr, rates.lr) << round;
    EXPECT_EQ(policy.rates[0].beta1, 0.9) << round;
    const std::string why = "tensor \"t1\"[3] (element 3): slot 1's gradient is inf";
    EXPECT_EQ(policy.why_skipped, skipped_last && knows_why ? why : "") << round;
  }

  uint64_t round = 1;
  int64_t index = -1;
  bool skipped_last = false;
  LossScalerState scaler = StartLossScaler(kScaler);
  GroupRates rates;
  testing::Reference state = testing::Reference(testing::Random(kModelSizes, 1));
};

TEST(PolicyE2e, KillsOfServersChangeNoReportAndNoBit) {
  ServerProcesses servers(BALLASTD_PATH, 2, {});
  World first(servers, "scaled", client::Resume::kNever);
  EXPECT_EQ(first.slots[0]->client().policy().loss_scale, 64);
  EXPECT_EQ(first.slots[1]->client().policy().schedule_index, -1);
  // Servers go down in the middle of rounds: some wait, and some results are said twice.
  std::thread rounds([&] { first.RunTo(kChange); });
  for (const uint32_t id : {1, 0, 1}) servers.Strike(id);
  rounds.join();
  for (auto& trainer : first.slots) trainer->Vanish();
  servers.Strike(0);
  World second(servers, "scaled", client::Resume::kMust);
  Loop loop;
  loop.RunTo(kChange);
  for (auto& trainer : second.slots) loop.Expect(trainer->client().policy());
  second.RunTo(kRounds);

  Loop again;
  for (uint64_t round = 1; round <= kRounds; ++round) {
    again.RunTo(round);
    const World& world = round <= kChange ? first : second;
    for (const auto& trainer : world.slots) again.Expect(trainer->policies().at(round));
  }
  const testing::Reference& state = again.state;
  Tensors p = testing::Random(kModelSizes, 9), m = p, v = p;
  std::vector<client::StateBuffers> buffers;
  for (size_t t = 0; t < p.size(); ++t) {
    buffers.push_back({{p[t].data(), m[t].data(), v[t].data()}});
  }
  ASSERT_TRUE(second.slots[0]->client().FetchState(buffers, nullptr).ok());
  EXPECT_EQ(DifferingBits(p, state.p) + DifferingBits(m, state.m) + DifferingBits(v, state.v), 0u);
}

// A folder that goes with the test.
struct Folder {
  Folder() { mkdtemp(path.data()); }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path = std::filesystem::temp_directory_path() / "ballast-policy-XXXXXX";
};

TEST(PolicyE2e, ForksAndImportsContinueWhereTheSnapshotStood) {
  Folder shared;
  ServerProcesses servers(
      BALLASTD_PATH, 2,
      {"storage.snapshot_dir=" + shared.path + "/s", "storage.export_dir=" + shared.path + "/e"});
  const auto ballastctl = [&](std::vector<std::string> command) {
    command.insert(command.begin(), BALLASTCTL_PATH);
    command.insert(command.end(), {"--endpoint", servers.address(0)});
    return Child(command).Wait();
  };
  World world(servers, "scaled", client::Resume::kNever);
  world.RunTo(9);
  ASSERT_TRUE(world.slots[0]->client().Snapshot("nine", 0).ok());
  world.RunTo(10);
  ASSERT_EQ(ballastctl({"snapshot", "fork", "scaled", "nine", "--as", "forked"}), 0);
  ASSERT_EQ(ballastctl({"export", "scaled", "--snapshot", "nine", "--name", "out", "--state"}), 0);
  ASSERT_EQ(ballastctl({"import", "out", "--as", "imported"}), 0);
  for (const std::string name : {"forked", "imported"}) {
    World next(servers, name, client::Resume::kMust);
    Loop loop;
    loop.RunTo(9);
    for (auto& trainer : next.slots) loop.Expect(trainer->client().policy(), name == "forked");
    next.RunTo(kRounds);
    loop.RunTo(kRounds);
    for (const auto& trainer : next.slots) loop.Expect(trainer->policies().at(kRounds));
  }
}

// Groups added to the job later take the values of their schedule groups.
TEST(PolicyE2e, AGroupThatIsAddedBelongsToTheScheduleGroupThatItNames) {
  ServerProcesses servers(BALLASTD_PATH, 2, {});
  client::JobOptions options = SmallJob(servers.address(0), "grown", 0, 1);
  options.policy.schedule.type = "LRRangeTest";
  options.policy.schedule.arguments = {{"lr_range_test_min_lr", std::vector<double>{0.25, 0.5}},
                                       {"lr_range_test_step_rate", 0.0}};
  options.policy.schedule.groups = {0};
  options.policy.schedule.group_count = 2;
  std::vector<float> weights[3] = {{1, 2}, {3}, {4}}, grads[3] = {{1, 1}, {1}, {1}};
  std::vector<client::TensorBuffers> buffers;
  const auto tensor = [&](uint32_t group) {
    client::Tensor made;
    made.name = absl::StrCat("t", group);
    made.shape = {static_cast<int64_t>(weights[group].size())};
    made.group = group;
    buffers.push_back({grads[group].data(), weights[group].data()});
    return made;
  };
  std::vector<client::Hyper> hyper(1, client::AdamWHyper());
  auto attached = client::Client::Attach(options, {tensor(0)}, buffers);
  ASSERT_TRUE(attached.ok()) << attached.status();
  client::Client& client = **attached;
  ASSERT_TRUE(client.Step(hyper, buffers).ok());
  const std::vector<client::Tensor> added = {tensor(1), tensor(2)};
  const std::vector<client::TensorBuffers> new_buffers(buffers.begin() + 1, buffers.end());
  const absl::Status refused = client.Extend(added, new_buffers, client::InitMode::kEqual, {1, 2});
  EXPECT_EQ(client::GetErrorInfo(refused).reason_name, "BAD_HYPERPARAM") << refused;
  const absl::Status grown = client.Extend(added, new_buffers, client::InitMode::kEqual, {1, 0});
  ASSERT_TRUE(grown.ok()) << grown;
  hyper.resize(3, client::AdamWHyper());
  const auto report = client.Step(hyper, buffers);
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_EQ(report->policy.rates.size(), 3u);
  EXPECT_EQ(report->policy.rates[0].lr, 0.25);
  EXPECT_EQ(report->policy.rates[1].lr, 0.5);
  EXPECT_EQ(report->policy.rates[2].lr, 0.25);
  EXPECT_EQ(report->policy.schedule_index, 1);
}

// The second clean round grows the scale from 4 to 8. Its gradients, of a loss multiplied by 4, are
// divided by 4, or under DeepSpeed's profile by 8.
TEST(PolicyE2e, TheProfilesDifferInTheWeightsOfARoundThatGrowsTheScale) {
  ServerProcesses servers(BALLASTD_PATH, 1, {});
  for (const auto profile : {client::PolicyProfile::kExact, client::PolicyProfile::kDeepSpeed}) {
    const bool exact = profile == client::PolicyProfile::kExact;
    client::JobOptions options = SmallJob(servers.address(0), exact ? "exact" : "quirk", 0, 1);
    options.optimizer = "SGD";
    options.policy.profile = profile;
    options.policy.loss_scale = client::DynamicLossScale();
    options.policy.loss_scale->initial_scale_power = 2;
    options.policy.loss_scale->loss_scale_window = 1;
    float weight = 1, grad = 0.5f * 4;
    const std::vector<client::TensorBuffers> buffers = {{&grad, &weight}};
    client::Tensor tensor;
    tensor.name = "w";
    tensor.shape = {1};
    const auto attached = client::Client::Attach(options, {tensor}, buffers);
    ASSERT_TRUE(attached.ok()) << attached.status();
    const std::vector<client::Hyper> hyper = {client::SgdHyper(/*lr=*/1)};
    ASSERT_TRUE((*attached)->Step(hyper, buffers, 4).ok());
    EXPECT_EQ(weight, 0.5f);
    const auto report = (*attached)->Step(hyper, buffers, 4);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(weight, exact ? 0.0f : 0.25f);
    EXPECT_EQ(report->grad_norm, exact ? 0.5 : 0.25);
    EXPECT_EQ(report->loss_scale, 8);
  }
}

TEST(PolicyE2e, AnOverflowAtTheMinimumHaltsEveryTrainer) {
  ServerProcesses servers(BALLASTD_PATH, 2, {});
  std::vector<std::unique_ptr<Trainer>> slots;
  for (uint32_t slot = 0; slot < 2; ++slot) {
    client::JobOptions options = OptionsOf(servers, "stuck", slot);
    options.policy.loss_scale->initial_scale_power = 0;
    options.policy.loss_scale->hysteresis = 1;
    slots.push_back(std::make_unique<Trainer>(options));
    slots.back()->Spoil({1});
  }
  Both([&](uint32_t slot) {
    ASSERT_TRUE(slots[slot]->Attach().ok());
    const absl::Status halted = slots[slot]->Step();
    EXPECT_EQ(client::GetErrorInfo(halted).reason_name, "NONFINITE") << halted;
    EXPECT_NE(halted.message().find("the loss scale is at its minimum, 1"), std::string::npos)
        << halted;
    EXPECT_TRUE(slots[slot]->Step().ok()) << "the next round may follow";
  });
}

TEST(PolicyE2e, GradientsOfAnotherScaleAreNotSent) {
  ServerProcesses servers(BALLASTD_PATH, 1, {});
  client::JobOptions options = OptionsOf(servers, "wrong", 0);
  options.world = 1;
  Trainer trainer(options);
  ASSERT_TRUE(trainer.Attach().ok());
  const std::vector<client::Hyper> hyper(1, client::AdamWHyper());
  std::vector<client::TensorBuffers> buffers(kModelSizes.size());
  Tensors weights = trainer.weights();
  for (size_t t = 0; t < weights.size(); ++t) buffers[t] = {weights[t].data(), weights[t].data()};
  for (const double scale : {0.0, 32.0}) {
    const absl::Status refused = trainer.client().BeginStep(hyper, buffers, scale);
    EXPECT_EQ(client::GetErrorInfo(refused).reason_name, "LOSS_SCALE_MISMATCH") << refused;
  }
  EXPECT_TRUE(trainer.client().Step(hyper, buffers, 64).ok());
}

}  // namespace
}  // namespace ballast::server
