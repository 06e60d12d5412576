// A trainer of the end-to-end tests: its own copy of a small model and a real client. Its gradients
// depend on slot and round alone, so that a plain loop can compute the job's expected state.
// Comes from: replace_test.cc, world_test.cc, world_trainer.cc. Goes to: ballast/client.h.
// Thread safety: as Client.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ballast/client.h"
#include "tests/server/engine/engine_cluster.h"

namespace ballast::server {

using Tensors = std::vector<std::vector<float>>;

const std::vector<int64_t> kModelSizes = {9000, 77, 3000};

inline Tensors GradientsOf(uint32_t slot, uint64_t round) {
  return testing::Random(kModelSizes, static_cast<uint32_t>(100 * round + slot));
}

// Options of a small durable job at `endpoint`.
inline client::JobOptions SmallJob(const std::string& endpoint, const std::string& job,
                                   uint32_t slot, uint32_t world) {
  client::JobOptions options;
  options.endpoints = {endpoint};
  options.job = job;
  options.world = world;
  options.slot = slot;
  options.tile_elements = 64;
  options.extent_elements = 2048;
  options.durability = client::Durability::kPower;
  return options;
}

class Trainer {
 public:
  // `seed` is that of its own initial weights.
  explicit Trainer(client::JobOptions options, uint32_t seed = 1)
      : options_(std::move(options)), weights_(testing::Random(kModelSizes, seed)) {}

  absl::Status Attach() {
    std::vector<client::Tensor> tensors;
    for (size_t i = 0; i < kModelSizes.size(); ++i) {
      client::Tensor tensor;
      tensor.name = absl::StrCat("t", i);
      tensor.shape = {kModelSizes[i]};
      tensors.push_back(std::move(tensor));
    }
    auto attached = client::Client::Attach(options_, tensors, Buffers());
    if (attached.ok()) client_ = *std::move(attached);
    return attached.status();
  }
  absl::Status Begin() {
    grads_ = GradientsOf(options_.slot, client_->round());
    for (size_t i = 0; i < sum_over_.size(); ++i)
      Sum(GradientsOf(sum_over_[i], client_->round()), i);
    const bool scaled = options_.policy.loss_scale.has_value();
    const double loss_scale = scaled ? client_->policy().loss_scale : 0;
    if (scaled) Scale(static_cast<float>(loss_scale));
    if (spoilt_.count(client_->round()) != 0) grads_[1][3] = std::numeric_limits<float>::infinity();
    if (absl::Status st = client_->SetUserState(StateOf(client_->round())); !st.ok()) return st;
    return client_->BeginStep(std::vector<client::Hyper>(1, client::AdamWHyper()), Buffers(),
                              loss_scale);
  }
  // Its gradients of these rounds are not finite.
  void Spoil(std::set<uint64_t> rounds) { spoilt_ = std::move(rounds); }
  // From now on its gradients are the sums over these slots, as after a reduce-scatter.
  void SumOver(std::vector<uint32_t> slots) { sum_over_ = std::move(slots); }
  // Its user state of a round.
  std::string StateOf(uint64_t round) const {
    return absl::StrCat("slot ", options_.slot, ", ", round);
  }
  // Begins the next round and waits for its end.
  absl::Status Step() {
    const absl::Status begun = Begin();
    return begun.ok() ? Finish() : begun;
  }
  // Waits for the end of the started round.
  absl::Status Finish() {
    client::RoundReport report;
    absl::StatusOr<bool> done = false;
    while (done.ok() && !*done) done = client_->Wait(std::chrono::seconds(1), &report);
    if (done.ok()) Contributed(report.round, report.world);
    if (done.ok()) policies_[report.round] = report.policy;
    return done.status();
  }
  void Contributed(uint64_t round, uint32_t world) { worlds_[round] = world; }
  // Runs every round up to `last`.
  void RunTo(uint64_t last) {
    while (client_->round() <= last) {
      const absl::Status status = Step();
      ASSERT_TRUE(status.ok()) << "slot " << options_.slot << ": " << status;
    }
  }
  // Without a Leave, in the middle of whatever it does.
  void Vanish() { client_.reset(); }

  client::Client& client() { return *client_; }
  const Tensors& weights() const { return weights_; }
  // Rounds that it has finished, and how many trainers were said to take part.
  const std::map<uint64_t, uint32_t>& worlds() const { return worlds_; }
  // The policy that each of them reported.
  const std::map<uint64_t, client::Policy>& policies() const { return policies_; }

 private:
  // The first one replaces the old values.
  void Sum(const Tensors& more, size_t number) {
    for (size_t t = 0; t < more.size(); ++t) {
      for (size_t i = 0; i < more[t].size(); ++i) {
        grads_[t][i] = number == 0 ? more[t][i] : grads_[t][i] + more[t][i];
      }
    }
  }
  void Scale(float factor) {
    for (std::vector<float>& grad : grads_) {
      for (float& g : grad) g *= factor;
    }
  }
  std::vector<client::TensorBuffers> Buffers() {
    std::vector<client::TensorBuffers> buffers(weights_.size());
    for (size_t i = 0; i < weights_.size(); ++i) {
      buffers[i].weight = weights_[i].data();
      if (!grads_.empty()) buffers[i].grad = grads_[i].data();
    }
    return buffers;
  }

  const client::JobOptions options_;
  Tensors weights_;
  Tensors grads_;
  std::map<uint64_t, uint32_t> worlds_;
  std::map<uint64_t, client::Policy> policies_;
  std::set<uint64_t> spoilt_;
  std::vector<uint32_t> sum_over_;
  std::unique_ptr<client::Client> client_;
};

inline uint64_t DifferingBits(const Tensors& a, const Tensors& b) {
  uint64_t bits = 0;
  for (size_t t = 0; t < a.size(); ++t) {
    for (size_t i = 0; i < a[t].size(); ++i) {
      const auto x = std::bit_cast<uint32_t>(a[t][i]) ^ std::bit_cast<uint32_t>(b[t][i]);
      bits += static_cast<uint64_t>(std::popcount(x));
    }
  }
  return bits;
}

// Bits in which the job's masters and moments differ from those of a plain loop over the rounds 1,
// 2, ... with these contributors each.
inline uint64_t DifferingBits(client::Client* client,
                              const std::vector<std::vector<uint32_t>>& contributors) {
  testing::Reference reference(testing::Random(kModelSizes, 1));
  const client::Hyper hyper = client::AdamWHyper();
  for (size_t i = 0; i < contributors.size(); ++i) {
    std::vector<Tensors> grads;
    for (const uint32_t slot : contributors[i]) grads.push_back(GradientsOf(slot, i + 1));
    reference.Step(grads, static_cast<float>(1.0 / static_cast<double>(grads.size())), hyper,
                   std::vector<bool>(kModelSizes.size(), true));
  }
  Tensors p = reference.p, m = reference.m, v = reference.v;
  std::vector<client::StateBuffers> buffers;
  for (size_t t = 0; t < p.size(); ++t) {
    buffers.push_back({{p[t].data(), m[t].data(), v[t].data()}});
  }
  std::vector<uint64_t> steps;
  const absl::Status fetched = client->FetchState(buffers, &steps);
  EXPECT_TRUE(fetched.ok()) << fetched;
  EXPECT_EQ(steps, reference.step);
  return DifferingBits(p, reference.p) + DifferingBits(m, reference.m) +
         DifferingBits(v, reference.v);
}

}  // namespace ballast::server
