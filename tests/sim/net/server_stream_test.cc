// The server's end of the simulated network keeps the conformance of streams, so that its results
// for TrainerStream hold over gRPC too.
#include "tests/sim/net/server_stream.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "tests/server/stream/stream_conformance.h"
#include "tests/sim/net/transport.h"

namespace ballast::sim {
namespace {

// A server process whose only call is the test's.
class OneStreamServer final : public StreamServer {
 public:
  OneStreamServer(World* world, Network* network) : world_(world), network_(network) {}
  ~OneStreamServer() override {
    if (stream_ != nullptr) stream_->Drop();
  }

  void Serve(server::StreamFactory factory) { factory_ = std::move(factory); }

  bool Serves() const override { return true; }
  void OnOpen(const StreamPtr& stream) override {
    stream_ = std::make_shared<SimStream>(world_, network_, stream, SimStream::Sees());
    stream_->Begin(factory_);
  }
  void OnCall(const char*, const Payload&, UnaryDone) override {}

 private:
  World* const world_;
  Network* const network_;
  server::StreamFactory factory_;
  std::shared_ptr<SimStream> stream_;
};

Swarm CalmServer() {
  Swarm swarm;
  swarm.pace.network = kMillisecond;
  return swarm;
}

class SimStreamBench final : public server::StreamBench {
 public:
  SimStreamBench() { network_.Add(&server_); }

  void Serve(server::StreamFactory factory) override { server_.Serve(std::move(factory)); }
  std::string address() const override { return Network::Address(0); }
  Mutex* mu() override { return &mu_; }
  client::Transport* transport() override { return &transport_; }
  bool RunUntil(const std::function<bool()>& done) override {
    MutexLock lock(&mu_);
    return world_.RunUntil(done);
  }

 private:
  Mutex mu_;
  const Swarm swarm_ = CalmServer();
  World world_{/*seed=*/1, swarm_.shape.servers + swarm_.processes_max(), /*trace=*/false};
  Network network_{&world_, &swarm_};
  OneStreamServer server_{&world_, &network_};
  SimTransport transport_{{.world = &world_, .swarm = &swarm_, .network = &network_},
                          /*process=*/0,
                          /*slot=*/0};
};

}  // namespace
}  // namespace ballast::sim

namespace ballast::server {
namespace {

INSTANTIATE_TEST_SUITE_P(Simulator, StreamConformance,
                         ::testing::Values(MakeStreamBench::Of<sim::SimStreamBench>()),
                         [](const auto&) { return std::string("Simulator"); });

}  // namespace
}  // namespace ballast::server
