// Shared parts of the whole client's tests: a small model with its memory, and fake servers for it.
// Thread safety: none; one thread, the test's.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ballast/client.h"
#include "ballast/error.h"
#include "tests/client/cpp/fake_server.h"

namespace ballast::client {

// A model of a few tensors in two groups and two dtypes, with memory for weights and gradients.
struct Model {
  std::vector<Tensor> tensors;
  std::vector<std::string> weights;
  std::vector<std::string> grads;

  Model() {
    Add("embed", {100, 11}, DType::kF32, 0);
    Add("bias", {3}, DType::kF32, 0);
    Add("empty", {0, 7}, DType::kF32, 0);
    Add("head", {900}, DType::kBF16, 1);
  }

  void Add(const std::string& name, std::vector<int64_t> shape, DType dtype, uint32_t group) {
    Tensor tensor;
    tensor.name = name;
    tensor.shape = std::move(shape);
    tensor.dtype = dtype;
    tensor.group = group;
    size_t bytes = dtype == DType::kF32 ? 4 : 2;
    for (const int64_t dimension : tensor.shape) bytes *= static_cast<size_t>(dimension);
    std::string weight(bytes, '\0');
    std::string grad(bytes, '\0');
    for (size_t i = 0; i < bytes; ++i) {
      weight[i] = static_cast<char>(i * 7 + tensors.size());
      grad[i] = static_cast<char>(i * 13 + 5 * tensors.size() + 1);
    }
    tensors.push_back(std::move(tensor));
    weights.push_back(std::move(weight));
    grads.push_back(std::move(grad));
  }

  std::vector<TensorBuffers> Buffers() {
    std::vector<TensorBuffers> buffers;
    for (size_t i = 0; i < tensors.size(); ++i) {
      TensorBuffers b;
      b.grad = grads[i].data();
      b.weight = weights[i].data();
      buffers.push_back(b);
    }
    return buffers;
  }
};

class ClientTest : public ::testing::Test {
 protected:
  ClientTest() { options_.durability = Durability::kNone; }

  void StartServers(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      servers_.push_back(std::make_unique<FakeServer>(static_cast<uint32_t>(3 * i + 1), &job_));
    }
    for (auto& server : servers_) {
      for (auto& peer : servers_) server->peers.push_back(peer.get());
    }
    options_.endpoints = {servers_[0]->address()};
    options_.job = "test";
    options_.tile_elements = 64;
    options_.extent_elements = 512;
    options_.attach_timeout = std::chrono::seconds(60);
  }

  absl::Status Attach() {
    auto client = Client::Attach(options_, model_.tensors, model_.Buffers());
    if (client.ok()) client_ = *std::move(client);
    return client.status();
  }

  absl::StatusOr<RoundReport> Step() {
    return client_->Step(std::vector<Hyper>(2, AdamWHyper()), model_.Buffers());
  }

  void ExpectReason(const absl::Status& status, absl::StatusCode code, const std::string& reason) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_EQ(GetErrorInfo(status).reason_name, reason) << status;
  }

  // The step fails so, and so does everything after it.
  void ExpectBroken(const absl::Status& status, absl::StatusCode code, const std::string& reason) {
    ExpectReason(status, code, reason);
    EXPECT_EQ(Step().status(), status);
    EXPECT_EQ(client_->FetchWeights(model_.Buffers()), status);
  }

  FakeServer& Server(size_t index) { return *servers_[index]; }

  FakeJob job_;
  JobOptions options_;
  Model model_;
  std::vector<std::unique_ptr<FakeServer>> servers_;
  std::unique_ptr<Client> client_;
};

}  // namespace ballast::client
