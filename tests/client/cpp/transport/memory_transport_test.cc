// The transport without threads keeps the conformance of links, so that its results for a session
// hold over gRPC too.
#include "tests/client/cpp/transport/memory_transport.h"

#include <gtest/gtest.h>

#include "tests/client/cpp/transport/link_conformance.h"

namespace ballast::client {
namespace {

class MemoryBench final : public LinkBench {
 public:
  Mutex* mu() override { return &mu_; }
  Transport* transport() override { return &transport_; }
  LinkPeer* peer() override { return peer_; }
  bool RunUntil(const std::function<bool()>& done) override {
    MutexLock lock(&mu_);
    while (!done()) {
      if (!events_.RunOne()) return false;
    }
    return true;
  }

 private:
  Mutex mu_;
  EventQueue events_;
  MemoryTransport transport_{&events_};
  MemoryPeer* const peer_ = transport_.AddPeer("memory:1");
};

INSTANTIATE_TEST_SUITE_P(Memory, LinkConformance,
                         ::testing::Values(MakeLinkBench::Of<MemoryBench>()),
                         [](const auto&) { return std::string("Memory"); });

}  // namespace
}  // namespace ballast::client
