// The whole client against fake servers: its requests, its use of their answers, and its failures.
#include "ballast/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "tests/client/cpp/client_fixture.h"

namespace ballast::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(ClientTest, AttachSendsSpecAndDigestsAndUploadsTheWeights) {
  StartServers(2);
  ASSERT_TRUE(Attach().ok());
  EXPECT_EQ(client_->round(), 1u);
  EXPECT_EQ(client_->job_id(), FakeServer::kJob);
  EXPECT_EQ(client_->server_count(), 2u);
  const v1::AttachRequest& request = Server(0).attach;
  EXPECT_EQ(request.spec().name(), "test");
  EXPECT_EQ(request.spec().group_count(), 2u);
  EXPECT_EQ(request.spec().tensors_size(), 4);
  EXPECT_EQ(request.spec().durability(), v1::DURABILITY_NONE);
  EXPECT_EQ(request.init(), v1::INIT_MODE_EQUAL);
  ASSERT_EQ(request.tensor_crc32c_size(), 4);
  EXPECT_EQ(request.tensor_crc32c(0), Crc32c(model_.weights[0].data(), model_.weights[0].size()));
  EXPECT_EQ(request.tensor_crc32c(2), 0u);

  // Both servers together hold the bytes of the model.
  std::string held;
  std::string expected;
  for (const std::string& weight : model_.weights) expected += weight;
  for (uint32_t extent = 0; extent < Server(0).layout().extents().size(); ++extent) {
    for (auto& server : servers_) {
      for (const uint32_t owned : server->Owned()) {
        if (owned == extent) held += server->weights[extent];
      }
    }
  }
  EXPECT_TRUE(held == expected);
  const TransferCounters counters = client_->counters();
  EXPECT_EQ(counters.payload_up_bytes, expected.size());
  EXPECT_EQ(counters.copied_up_bytes, 0u);
  for (auto& server : servers_) EXPECT_LE(server->max_outstanding, job_.credit_bytes);
}

TEST_F(ClientTest, StepPushesEveryGradientAndTakesTheWeights) {
  StartServers(2);
  ASSERT_TRUE(Attach().ok());
  auto report = Step();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->round, 1u);
  EXPECT_TRUE(report->applied);
  EXPECT_EQ(report->grad_norm, 1.25);
  uint64_t bytes = 0;
  for (const std::string& grad : model_.grads) bytes += grad.size();
  EXPECT_EQ(report->bytes_up, bytes);
  EXPECT_EQ(report->bytes_down, bytes);
  // The fake returns gradients as weights.
  EXPECT_TRUE(model_.weights == model_.grads);
  EXPECT_EQ(client_->round(), 2u);
  EXPECT_EQ(client_->counters().copied_down_bytes, bytes);
  for (auto& server : servers_) {
    ASSERT_EQ(server->begins.size(), 1u);
    EXPECT_EQ(server->begins[0].round(), 1u);
    EXPECT_EQ(server->begins[0].presence(), "");
    ASSERT_EQ(server->begins[0].hyper_size(), 2);
    EXPECT_EQ(server->begins[0].hyper(0).value_size(), 5);
    EXPECT_EQ(server->begins[0].hyper(0).value(2), 0.999);
  }
  auto second = Step();
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->round, 2u);
}

TEST_F(ClientTest, AnUploadIsARoundThatSendsWeightsAndTheirDigests) {
  StartServers(2);
  ASSERT_TRUE(Attach().ok());
  ASSERT_TRUE(Step().ok());
  ASSERT_TRUE(client_->SetUserState("here").ok());
  for (std::string& weight : model_.weights) {
    for (char& byte : weight) byte = static_cast<char>(byte + 1);
  }
  const std::vector<std::string> edited = model_.weights;
  std::vector<TensorBuffers> buffers = model_.Buffers();
  for (TensorBuffers& tensor : buffers) tensor.grad = nullptr;
  ASSERT_TRUE(client_->BeginUpload(buffers).ok());
  RoundReport report;
  ASSERT_EQ(*client_->Wait(std::chrono::seconds(60), &report), true);
  EXPECT_EQ(report.round, 2u);
  EXPECT_EQ(report.bytes_up, report.bytes_down);
  EXPECT_TRUE(model_.weights == edited);  // The fake returns the pushed bytes.
  for (auto& server : servers_) {
    const v1::RoundBegin& begin = server->begins.back();
    EXPECT_TRUE(begin.upload());
    EXPECT_EQ(begin.hyper_size(), 0);
    EXPECT_EQ(begin.presence(), "");
    ASSERT_EQ(begin.weight_crc32c_size(), 4);
    EXPECT_EQ(begin.weight_crc32c(0), Crc32c(edited[0].data(), edited[0].size()));
  }
  EXPECT_EQ(Server(0).begins.back().user_state(), "here");
  ASSERT_TRUE(Step().ok());
  EXPECT_FALSE(Server(0).begins.back().upload());
}

TEST_F(ClientTest, AnUploadForBroadcastSendsNoDigests) {
  StartServers(1);
  options_.init = InitMode::kBroadcast;
  ASSERT_TRUE(Attach().ok());
  ASSERT_TRUE(client_->BeginUpload(model_.Buffers()).ok());
  ASSERT_EQ(*client_->Wait(std::chrono::seconds(60), nullptr), true);
  EXPECT_TRUE(Server(0).begins.back().upload());
  EXPECT_EQ(Server(0).begins.back().weight_crc32c_size(), 0);
}

TEST_F(ClientTest, AStatePlaneIsARoundThatSendsItsBitsAndStepCounts) {
  StartServers(2);
  ASSERT_TRUE(Attach().ok());
  const std::vector<std::string> bits = model_.grads;
  ASSERT_TRUE(client_->BeginStateUpload({2, false, {5, 6, 0, 7}, 9}, model_.Buffers()).ok());
  ASSERT_EQ(*client_->Wait(std::chrono::seconds(60), nullptr), true);
  for (auto& server : servers_) {
    const v1::RoundBegin& begin = server->begins.back();
    EXPECT_FALSE(begin.upload());
    EXPECT_EQ(begin.plane(), v1::STATE_PLANE_ARRAY2);
    EXPECT_EQ(begin.hyper_size(), 0);
    EXPECT_EQ(begin.presence(), "");
    EXPECT_EQ(begin.opt_step(), 9u);
    EXPECT_EQ(std::vector<uint64_t>(begin.tensor_step().begin(), begin.tensor_step().end()),
              (std::vector<uint64_t>{5, 6, 0, 7}));
    ASSERT_EQ(begin.weight_crc32c_size(), 4);
    EXPECT_EQ(begin.weight_crc32c(3), Crc32c(bits[3].data(), bits[3].size()));
  }
  // The low plane of 16-bit tensors, of which there is one.
  std::vector<TensorBuffers> low = model_.Buffers();
  for (size_t t = 0; t < 3; ++t) low[t].grad = nullptr;
  RoundReport report;
  ASSERT_TRUE(client_->BeginStateUpload({0, true, {}, 0}, low).ok());
  ASSERT_EQ(*client_->Wait(std::chrono::seconds(60), &report), true);
  EXPECT_EQ(report.bytes_up, bits[3].size());
  const v1::RoundBegin& begin = Server(0).begins.back();
  EXPECT_EQ(begin.plane(), v1::STATE_PLANE_MASTER_LOW);
  EXPECT_EQ(begin.presence(), std::string(1, '\x08'));
  EXPECT_EQ(begin.tensor_step_size(), 0);
  EXPECT_EQ(begin.weight_crc32c(0), 0u);
  ASSERT_TRUE(Step().ok());
  EXPECT_EQ(Server(0).begins.back().plane(), v1::STATE_PLANE_NONE);
}

TEST_F(ClientTest, MalformedStatePlanesAreRefusedBeforeAnythingIsSent) {
  StartServers(1);
  ASSERT_TRUE(Attach().ok());
  const size_t begun = Server(0).begins.size();
  const auto reason = [&](const StateUpload& upload, const std::vector<TensorBuffers>& buffers) {
    return ReasonOf(client_->BeginStateUpload(upload, buffers));
  };
  const std::vector<TensorBuffers> all = model_.Buffers();
  std::vector<TensorBuffers> lacking = all;
  lacking[1].grad = nullptr;
  std::vector<TensorBuffers> short_of_one = all;
  short_of_one.pop_back();
  const uint64_t too_many = (uint64_t{1} << 53) + 1;
  EXPECT_EQ(reason({1, false, {}, 0}, lacking), Reason::kBadArgument);
  EXPECT_EQ(reason({1, false, {}, 0}, short_of_one), Reason::kBadArgument);
  EXPECT_EQ(reason({1, true, {}, 0}, all), Reason::kBadArgument);
  EXPECT_EQ(reason({3, false, {}, 0}, all), Reason::kBadArgument);
  EXPECT_EQ(reason({UINT32_MAX, false, {}, 0}, all), Reason::kBadArgument);
  EXPECT_EQ(reason({1, false, {1, 2}, 0}, all), Reason::kBadArgument);
  EXPECT_EQ(reason({1, false, {1, 2, 3, too_many}, 4}, all), Reason::kBadArgument);
  EXPECT_EQ(reason({1, false, {1, 2, 3, 4}, too_many}, all), Reason::kBadArgument);
  EXPECT_EQ(Server(0).begins.size(), begun);
  ASSERT_TRUE(Step().ok());
}

TEST_F(ClientTest, GradientsFollowThePushOrder) {
  StartServers(1);
  ASSERT_TRUE(Attach().ok());
  Server(0).frames.clear();
  ASSERT_TRUE(Step().ok());
  std::vector<uint32_t> order;
  for (const DecodedFrame& frame : Server(0).frames) {
    EXPECT_EQ(frame.header.kind, FrameKind::kGradient);
    EXPECT_EQ(frame.header.round, 1u);
    if (order.empty() || order.back() != frame.header.extent) order.push_back(frame.header.extent);
  }
  EXPECT_EQ(order, Server(0).layout().push_order());
}

TEST_F(ClientTest, AbsentGradientsAreNotSentButTheirWeightsReceived) {
  StartServers(2);
  ASSERT_TRUE(Attach().ok());
  std::vector<TensorBuffers> buffers = model_.Buffers();
  const std::string before = model_.weights[0];
  buffers[0].grad = nullptr;
  auto report = client_->Step(std::vector<Hyper>(2, AdamWHyper()), buffers);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->bytes_up, model_.grads[1].size() + model_.grads[3].size());
  EXPECT_EQ(Server(0).begins[0].presence(), std::string("\x0e", 1));
  EXPECT_EQ(model_.weights[0], before);
  EXPECT_EQ(model_.weights[3], model_.grads[3]);
}

TEST_F(ClientTest, AServerThatOwnsNothingStillTakesPart) {
  StartServers(7);
  options_.extent_elements = 4096;
  ASSERT_TRUE(Attach().ok());
  EXPECT_TRUE(Server(6).Owned().empty());
  ASSERT_TRUE(Step().ok());
  EXPECT_EQ(Server(6).begins.size(), 1u);
  EXPECT_TRUE(model_.weights == model_.grads);
}

TEST_F(ClientTest, FramesOutOfTheWindowAreSentAgain) {
  StartServers(1);
  ASSERT_TRUE(Attach().ok());
  int refused = 0;
  Server(0).on_frame = [&](FakeStream* stream, const DecodedFrame& frame) {
    if (frame.header.kind != FrameKind::kGradient || ++refused > 2) return false;
    Server(0).Refuse(stream, frame.header, v1::REASON_OUT_OF_WINDOW);
    Server(0).Ack(stream, frame.header.round, static_cast<uint32_t>(refused));
    return true;
  };
  ASSERT_TRUE(Step().ok());
  EXPECT_TRUE(model_.weights == model_.grads);
  EXPECT_EQ(client_->counters().frames_refused, 2u);
}

TEST_F(ClientTest, AnswersToDuplicatesAreHarmless) {
  StartServers(1);
  ASSERT_TRUE(Attach().ok());
  Server(0).on_frame = [&](FakeStream* stream, const DecodedFrame& frame) {
    Server(0).Refuse(stream, frame.header, v1::REASON_DUPLICATE);
    return false;
  };
  EXPECT_TRUE(Step().ok());
}

TEST_F(ClientTest, AWindowOfOneExtentIsEnough) {
  job_.window_extents = 1;
  StartServers(1);
  ASSERT_TRUE(Attach().ok());
  const std::vector<uint32_t> order = Server(0).layout().push_order();
  std::map<uint32_t, uint32_t> taken;
  uint32_t base = 0;
  Server(0).acknowledge = false;
  Server(0).on_frame = [&](FakeStream* stream, const DecodedFrame& frame) {
    if (frame.header.kind != FrameKind::kGradient) return false;
    EXPECT_EQ(frame.header.extent, order[base]);
    taken[frame.header.extent] += frame.header.length_bytes;
    if (taken[order[base]] == Server(0).layout().ExtentWireBytes(order[base])) ++base;
    Server(0).Ack(stream, frame.header.round, base);
    return false;
  };
  ASSERT_TRUE(Step().ok());
  EXPECT_TRUE(model_.weights == model_.grads);
}

TEST_F(ClientTest, TheHomeIsFoundThroughAnotherServer) {
  StartServers(2);
  Server(1).on_attach = [&](const v1::AttachRequest&) {
    ErrorFields fields;
    fields.address = Server(0).address();
    return ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kNotHome, "ask", fields);
  };
  options_.endpoints = {Server(1).address()};
  ASSERT_TRUE(Attach().ok());
  EXPECT_TRUE(Step().ok());
}

TEST_F(ClientTest, EndpointsThatDoNotAnswerYetAreTriedAgain) {
  StartServers(1);
  int calls = 0;
  Server(0).on_attach = [&](const v1::AttachRequest&) {
    return ++calls < 3 ? absl::UnavailableError("starting") : absl::OkStatus();
  };
  // Nobody listens on port 1.
  options_.endpoints = {"127.0.0.1:1", Server(0).address()};
  ASSERT_TRUE(Attach().ok());
  EXPECT_EQ(calls, 3);
}

TEST_F(ClientTest, NoServerIsUnreachable) {
  StartServers(1);
  options_.endpoints = {"127.0.0.1:1"};
  options_.attach_timeout = std::chrono::milliseconds(300);
  const absl::Status status = Attach();
  ExpectReason(status, absl::StatusCode::kUnavailable, "UNREACHABLE");
  EXPECT_THAT(std::string(status.message()), HasSubstr("127.0.0.1:1"));
}

TEST_F(ClientTest, RefusedAttachesKeepTheirReason) {
  StartServers(1);
  Server(0).on_attach = [](const v1::AttachRequest&) {
    return ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kSpecMismatch, "world");
  };
  ExpectReason(Attach(), absl::StatusCode::kFailedPrecondition, "SPEC_MISMATCH");
}

TEST_F(ClientTest, AttachStopsWhenTheCallerSaysSo) {
  StartServers(1);
  int polls = 0;
  options_.endpoints = {"127.0.0.1:1"};
  options_.should_stop = [&] { return ++polls == 3; };
  ExpectReason(Attach(), absl::StatusCode::kCancelled, "CLOSED");
}

TEST_F(ClientTest, BadArgumentsAreNamed) {
  StartServers(1);
  const JobOptions good = options_;
  const auto expect = [&](const std::string& reason, const std::string& word) {
    const absl::Status status = Attach();
    ExpectReason(status, absl::StatusCode::kInvalidArgument, reason);
    EXPECT_THAT(std::string(status.message()), HasSubstr(word));
    options_ = good;
  };
  options_.endpoints.clear();
  expect("BAD_ARGUMENT", "endpoint");
  for (const std::string bad : {"foo", "host:", "host:0", "host:99999", "", "::1:7000"}) {
    options_.endpoints.push_back(bad);
    expect("BAD_ARGUMENT", "expected host:port such as 127.0.0.1:7000 or [::1]:7000, got \"" + bad);
  }
  options_.slot = 1;
  expect("BAD_ARGUMENT", "slot");
  options_.attach_timeout = std::chrono::milliseconds(0);
  expect("BAD_ARGUMENT", "attach_timeout");
  options_.time_scale = std::numeric_limits<double>::quiet_NaN();
  expect("BAD_ARGUMENT", "time_scale");
  options_.job = "no spaces";
  expect("BAD_SPEC", "no spaces");
  options_.tile_elements = 100;
  expect("BAD_SPEC", "100");
  model_.tensors[1].name = "embed";
  expect("BAD_SPEC", "embed");
  model_.tensors[1].name = "bias";
  model_.tensors[1].dtype = static_cast<DType>(9);
  expect("BAD_ARGUMENT", "bias");
}

TEST_F(ClientTest, MissingMemoryIsNamed) {
  StartServers(1);
  std::vector<TensorBuffers> buffers = model_.Buffers();
  buffers[1].weight = nullptr;
  const absl::Status status = Client::Attach(options_, model_.tensors, buffers).status();
  ExpectReason(status, absl::StatusCode::kInvalidArgument, "BAD_ARGUMENT");
  EXPECT_THAT(std::string(status.message()), HasSubstr("bias"));
}

TEST_F(ClientTest, BadHyperParametersAreRefusedWithoutBreakingTheClient) {
  StartServers(1);
  ASSERT_TRUE(Attach().ok());
  std::vector<Hyper> hyper(2, AdamWHyper());
  hyper[1][0] = std::numeric_limits<double>::quiet_NaN();
  ExpectReason(client_->Step(hyper, model_.Buffers()).status(), absl::StatusCode::kInvalidArgument,
               "BAD_HYPERPARAM");
  EXPECT_TRUE(Step().ok());
}

TEST_F(ClientTest, TheOptimizerIsTheJobsAndNamesItsStateArrays) {
  StartServers(2);
  ASSERT_TRUE(Attach().ok());
  EXPECT_EQ(Server(0).attach.spec().options_size(), 0);
  EXPECT_THAT(client_->state_arrays(), ElementsAre("master", "exp_avg", "exp_avg_sq"));
  options_.job = "sgd";
  options_.optimizer = "SGD";
  options_.optimizer_options = {{"nesterov", 1}, {"momentum", 1}};
  ASSERT_TRUE(Attach().ok());
  EXPECT_EQ(Server(0).attach.spec().optimizer(), v1::OPTIMIZER_KIND_SGD);
  EXPECT_THAT(Server(0).attach.spec().options(), ElementsAre(1, 1, 0));
  EXPECT_THAT(client_->state_arrays(), ElementsAre("master", "momentum_buffer"));
  const std::vector<Hyper> hyper(2, SgdHyper(0.1, 0.9));
  ASSERT_TRUE(client_->Step(hyper, model_.Buffers()).ok());
  EXPECT_THAT(Server(1).begins.back().hyper(1).value(), ElementsAre(0.1, 0.9, 0, 0));
}

TEST_F(ClientTest, AnInitModeThatDoesNotExistIsRefused) {
  StartServers(1);
  options_.init = InitMode{};
  ExpectReason(Attach(), absl::StatusCode::kInvalidArgument, "BAD_ARGUMENT");
  EXPECT_THAT(std::string(Attach().message()), HasSubstr("init is 0; "));
}

TEST_F(ClientTest, UnknownOptimizersAndOptionsAreRefusedByName) {
  StartServers(1);
  options_.optimizer = "Muon";
  ExpectReason(Attach(), absl::StatusCode::kInvalidArgument, "BAD_ARGUMENT");
  EXPECT_THAT(std::string(Attach().message()),
              HasSubstr("\"Muon\"; AdamW, Adam, SGD, Adagrad, Lion, LAMB, apply_delta are known"));
  options_.optimizer = "Lion";
  options_.optimizer_options = {{"amsgrad", 1}};
  EXPECT_THAT(std::string(Attach().message()), HasSubstr("Lion has no option \"amsgrad\""));
}

TEST_F(ClientTest, OtherSlotsReceiveTheWeightsOfABroadcast) {
  StartServers(2);
  options_.world = 2;
  options_.slot = 1;
  options_.init = InitMode::kBroadcast;
  ASSERT_TRUE(Attach().ok());
  EXPECT_EQ(Server(0).attach.tensor_crc32c_size(), 0);
  for (const std::string& weight : model_.weights) {
    EXPECT_EQ(weight, std::string(weight.size(), 'w'));
  }
  EXPECT_TRUE(Server(0).frames.empty());
}

TEST_F(ClientTest, StateIsFetchedIntoTheArraysAskedFor) {
  StartServers(2);
  ASSERT_TRUE(Attach().ok());
  std::vector<std::string> master(4);
  std::vector<std::string> square(4);
  std::vector<StateBuffers> buffers(4);
  const size_t elements[] = {1100, 3, 0, 900};
  for (size_t i = 0; i < 4; ++i) {
    master[i].resize(4 * elements[i]);
    square[i].resize(4 * elements[i]);
    buffers[i].arrays = {reinterpret_cast<float*>(master[i].data())};
    if (i == 3) continue;
    buffers[i].arrays.push_back(nullptr);
    buffers[i].arrays.push_back(reinterpret_cast<float*>(square[i].data()));
  }
  std::vector<uint64_t> steps;
  ASSERT_TRUE(client_->FetchState(buffers, &steps).ok());
  EXPECT_EQ(steps, (std::vector<uint64_t>{0, 1, 2, 3}));
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(master[i], std::string(4 * elements[i], 'p'));
    EXPECT_EQ(square[i], std::string(4 * elements[i], i == 3 ? '\0' : 'r'));
  }
  EXPECT_TRUE(Step().ok());
}

TEST_F(ClientTest, WeightsAreFetchedAgain) {
  StartServers(2);
  ASSERT_TRUE(Attach().ok());
  const std::vector<std::string> before = model_.weights;
  for (std::string& weight : model_.weights) weight.assign(weight.size(), '?');
  ASSERT_TRUE(client_->FetchWeights(model_.Buffers()).ok());
  EXPECT_TRUE(model_.weights == before);
}

TEST_F(ClientTest, ExtendUploadsOnlyTheNewTensors) {
  StartServers(1);
  ASSERT_TRUE(Attach().ok());
  Server(0).frames.clear();
  const uint32_t first = static_cast<uint32_t>(Server(0).layout().extents().size());
  Model late;
  late.tensors.clear();
  late.weights.clear();
  late.grads.clear();
  late.Add("late", {700}, DType::kF16, 2);
  ASSERT_TRUE(client_->Extend(late.tensors, late.Buffers(), InitMode::kEqual).ok());
  EXPECT_EQ(Server(0).extend.base_layout_version(), 1u);
  EXPECT_EQ(Server(0).extend.group_count(), 3u);
  EXPECT_EQ(Server(0).extend.tensor_crc32c_size(), 1);
  EXPECT_FALSE(Server(0).frames.empty());
  for (const DecodedFrame& frame : Server(0).frames) {
    EXPECT_EQ(frame.header.kind, FrameKind::kInit);
    EXPECT_GE(frame.header.extent, first);
  }
  std::vector<TensorBuffers> buffers = model_.Buffers();
  buffers.push_back(late.Buffers()[0]);
  auto report = client_->Step(std::vector<Hyper>(3, AdamWHyper()), buffers);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(Server(0).begins.back().layout_version(), 2u);
  EXPECT_TRUE(model_.weights == model_.grads);
  EXPECT_TRUE(late.weights == late.grads);
}

TEST_F(ClientTest, TensorsOfAnExistingGroupCannotBeAdded) {
  StartServers(1);
  ASSERT_TRUE(Attach().ok());
  Model late;
  late.tensors[0].name = "late";
  EXPECT_EQ(client_->Extend({late.tensors[0]}, {late.Buffers()[0]}, InitMode::kEqual).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Step().ok());
}

TEST_F(ClientTest, LeaveTellsEveryServerAndCloses) {
  StartServers(2);
  ASSERT_TRUE(Attach().ok());
  ASSERT_TRUE(Step().ok());
  EXPECT_TRUE(client_->Leave().ok());
  for (auto& server : servers_) {
    ASSERT_EQ(server->leaves.size(), 1u);
    EXPECT_EQ(server->leaves[0].round(), 2u);
  }
  EXPECT_TRUE(client_->Leave().ok());
  ExpectBroken(Step().status(), absl::StatusCode::kFailedPrecondition, "CLOSED");
}

TEST_F(ClientTest, LeaveInTheMiddleOfARoundBreaksTheRoundOff) {
  StartServers(1);
  ASSERT_TRUE(Attach().ok());
  Server(0).on_control = [](FakeStream*, const v1::ClientMessage& message) {
    return message.has_begin();
  };
  Server(0).on_frame = [](FakeStream*, const DecodedFrame&) { return true; };
  ASSERT_TRUE(client_->BeginStep(std::vector<Hyper>(2, AdamWHyper()), model_.Buffers()).ok());
  EXPECT_TRUE(client_->Leave().ok());
  EXPECT_EQ(Server(0).leaves.size(), 1u);
  RoundReport report;
  ExpectBroken(client_->Wait(std::chrono::seconds(60), &report).status(),
               absl::StatusCode::kFailedPrecondition, "CLOSED");
}

TEST_F(ClientTest, WaitReturnsFalseWhileTheRoundRuns) {
  StartServers(1);
  ASSERT_TRUE(Attach().ok());
  FakeStream* held = nullptr;
  Server(0).on_control = [&](FakeStream* stream, const v1::ClientMessage& message) {
    if (message.has_begin()) held = stream;
    return false;
  };
  Server(0).on_frame = [&](FakeStream* stream, const DecodedFrame& frame) {
    Server(0).Ack(stream, frame.header.round, 0);
    return true;
  };
  ASSERT_TRUE(client_->BeginStep(std::vector<Hyper>(2, AdamWHyper()), model_.Buffers()).ok());
  RoundReport report;
  auto done = client_->Wait(std::chrono::milliseconds(20), &report);
  ASSERT_TRUE(done.ok());
  EXPECT_FALSE(*done);
  EXPECT_EQ(client_->FetchWeights(model_.Buffers()).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(client_->BeginStep(std::vector<Hyper>(2, AdamWHyper()), model_.Buffers()).code(),
            absl::StatusCode::kFailedPrecondition);
  {
    std::lock_guard<std::mutex> lock(Server(0).mutex());
    Server(0).FinishRound(held);
  }
  done = client_->Wait(std::chrono::seconds(60), &report);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_TRUE(*done);
  EXPECT_EQ(report.round, 1u);
  EXPECT_EQ(client_->Wait(std::chrono::seconds(1), &report).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(ClientTest, AbortEndsAWaitFromAnotherThread) {
  StartServers(1);
  ASSERT_TRUE(Attach().ok());
  std::atomic<bool> begun{false};
  Server(0).on_control = [&](FakeStream*, const v1::ClientMessage& message) {
    if (message.has_begin()) begun = true;
    return message.has_begin();
  };
  Server(0).on_frame = [](FakeStream*, const DecodedFrame&) { return true; };
  std::thread aborter([&] {
    while (!begun) std::this_thread::yield();
    client_->Abort();
  });
  const absl::Status status = Step().status();
  aborter.join();
  ExpectBroken(status, absl::StatusCode::kCancelled, "CLOSED");
}

TEST_F(ClientTest, DestroyingAClientInTheMiddleOfARoundIsSafe) {
  StartServers(2);
  ASSERT_TRUE(Attach().ok());
  for (auto& server : servers_) {
    server->on_frame = [](FakeStream*, const DecodedFrame&) { return true; };
  }
  ASSERT_TRUE(client_->BeginStep(std::vector<Hyper>(2, AdamWHyper()), model_.Buffers()).ok());
  client_.reset();
}

}  // namespace
}  // namespace ballast::client
