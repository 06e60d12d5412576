// The simulator's transport keeps the conformance of links, so that its results for a session hold
// over gRPC too.
#include "tests/sim/net/transport.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/client/cpp/transport/link_conformance.h"

namespace ballast::sim {
namespace {

Swarm OneServer() {
  Swarm swarm;
  swarm.pace.network = kMillisecond;
  return swarm;
}

// The server's end of one call. `answer`: the server's, if any.
class CallEnd final : public StreamServerEnd {
 public:
  CallEnd(Network* network, StreamPtr stream,
          const std::optional<absl::StatusOr<std::string>>* answer)
      : network_(network), stream_(std::move(stream)), answer_(answer) {}

  void OnUp(const Payload&) override {
    if (!answer_->has_value()) return;
    const absl::StatusOr<std::string>& answer = **answer_;
    if (answer.ok()) network_->SendDown(stream_, Payload::FromString(*answer));
    network_->CloseDown(stream_, answer.status());
  }
  void OnUpEnded() override {}
  void OnUpClosed() override {}

 private:
  Network* const network_;
  const StreamPtr stream_;
  const std::optional<absl::StatusOr<std::string>>* const answer_;
};

// The server, played by the test.
class SimPeer final : public client::LinkPeer, public StreamServer, public StreamServerEnd {
 public:
  SimPeer(World* world, Network* network) : world_(world), network_(network) {}

  std::string address() const override { return Network::Address(0); }
  void Send(const std::string& message) override {
    network_->SendDown(newest_, Payload::FromString(message));
  }
  void End(const absl::Status& status) override { network_->CloseDown(newest_, status); }
  std::vector<std::string> received() override { return received_; }
  int half_closes() override { return half_closes_; }
  void AnswerCalls(absl::StatusOr<std::string> answer) override { answer_ = std::move(answer); }
  void Stop() override {
    listens_ = false;
    world_->EndLife(network_->ServerNode(0));
    network_->EndProcess(0, /*announced=*/true);
  }
  void Restart() override { listens_ = true; }

  bool Serves() const override { return listens_; }
  void OnOpen(const StreamPtr& stream) override {
    if (stream->timeout > 0) {
      calls_.push_back(std::make_unique<CallEnd>(network_, stream, &answer_));
      stream->server_end = calls_.back().get();
      return;
    }
    newest_ = stream;
    stream->server_end = this;
  }
  void OnUp(const Payload& message) override { received_.push_back(message.ToString()); }
  void OnUpEnded() override { ++half_closes_; }
  void OnUpClosed() override {}
  void OnCall(const char*, const Payload&, UnaryDone) override {}

 private:
  World* const world_;
  Network* const network_;
  bool listens_ = true;
  StreamPtr newest_;
  std::vector<std::unique_ptr<CallEnd>> calls_;
  std::vector<std::string> received_;
  std::optional<absl::StatusOr<std::string>> answer_;
  int half_closes_ = 0;
};

class SimBench final : public client::LinkBench {
 public:
  SimBench() { network_.Add(&peer_); }

  Mutex* mu() override { return &mu_; }
  client::Transport* transport() override { return &transport_; }
  client::LinkPeer* peer() override { return &peer_; }
  bool RunUntil(const std::function<bool()>& done) override {
    MutexLock lock(&mu_);
    return world_.RunUntil(done);
  }
  World* world() { return &world_; }
  Network* network() { return &network_; }

 private:
  Mutex mu_;
  const Swarm swarm_ = OneServer();
  World world_{/*seed=*/1, swarm_.shape.servers + swarm_.processes_max(), /*trace=*/false};
  Network network_{&world_, &swarm_};
  SimPeer peer_{&world_, &network_};
  SimTransport transport_{{.world = &world_, .swarm = &swarm_, .network = &network_},
                          /*process=*/0,
                          /*slot=*/0};
};

// How a call with an hour of time ends that is never answered, after `harm` to its connection.
absl::Status EndOfACall(SimBench* bench, const std::function<void()>& harm) {
  absl::Status told = absl::UnknownError("no answer yet");
  const auto call = bench->transport()->Start(
      {bench->peer()->address(), method::kAttach, std::chrono::hours(1)}, v1::AttachRequest(),
      [&](const absl::StatusOr<Payload>& answer) { told = answer.status(); });
  const Tick begun = bench->world()->now();
  bench->world()->After(kSecond, kNobody, EventKind::kFault, harm);
  EXPECT_TRUE(bench->RunUntil([&] { return !absl::IsUnknown(told); }));
  EXPECT_LT(bench->world()->now(), begun + kHour);
  return told;
}

TEST(SimTransportTest, ACallBreaksWhenItsConnectionIsSilent) {
  SimBench bench;
  Network* const network = bench.network();
  const NodeId server = network->ServerNode(0), trainer = network->TrainerNode(0);
  const auto cut = [&] { network->Cut(trainer, server, bench.world()->now() + kHour); };
  EXPECT_TRUE(absl::IsUnavailable(EndOfACall(&bench, cut)));
  network->HealAll();
  const auto pause = [&] {
    bench.world()->Pause(server);
    network->Paused();
  };
  EXPECT_TRUE(absl::IsUnavailable(EndOfACall(&bench, pause)));
  bench.world()->Resume(server);
  const auto lose_power = [&] {
    bench.world()->EndLife(server);
    network->EndProcess(0, /*announced=*/false);
  };
  EXPECT_TRUE(absl::IsUnavailable(EndOfACall(&bench, lose_power)));
}

}  // namespace
}  // namespace ballast::sim

namespace ballast::client {
namespace {

INSTANTIATE_TEST_SUITE_P(Simulator, LinkConformance,
                         ::testing::Values(MakeLinkBench::Of<sim::SimBench>()),
                         [](const auto&) { return std::string("Simulator"); });

}  // namespace
}  // namespace ballast::client
