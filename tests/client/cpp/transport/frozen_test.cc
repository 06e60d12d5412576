// The memory of a durable job's trainer comes back although a server, or its host, stops reading.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/client/cpp/pause_fixture.h"
#include "tests/client/cpp/transport/freezing_proxy.h"

namespace ballast::client {
namespace {

// A model whose gradients fill every buffer on their way, and a server that is missed soon.
class FrozenTest : public PauseTest {
 protected:
  FrozenTest() {
    job_.heartbeat_ms = 50;
    job_.report_after_ms = 2000;
    job_.chunk_bytes = 256 << 10;
    job_.credit_bytes = 64 << 20;
    model_.Add("large", {8 << 20}, DType::kF32, 1);
    options_.durability = Durability::kProcess;
  }

  void Start() {
    StartServers(1);
    options_.extent_elements = 1 << 20;
  }

  // When the step has returned, nothing may read the gradients or write the weights any more.
  void ExpectBuffersGivenBack() {
    const std::vector<std::string> after = model_.weights;
    for (std::string& grad : model_.grads) {
      std::string().swap(grad);  // Under AddressSanitizer a late read fails.
    }
    client_.reset();
    EXPECT_TRUE(model_.weights == after);
  }
};

TEST_F(FrozenTest, BuffersComeBackFromAServerThatStopsReading) {
  Start();
  ASSERT_TRUE(Attach().ok());
  bool stalled = false;
  Server(0).on_frame = [&](FakeStream* stream, const DecodedFrame&) {
    if (!stalled) stream->StopReading();
    stalled = true;
    return false;
  };
  ExpectGoodStep(1, 1);
  EXPECT_TRUE(stalled);
  ExpectBuffersGivenBack();
}

TEST_F(FrozenTest, BuffersComeBackFromAHostThatStops) {
  Start();
  FreezingProxy proxy(Server(0).address());
  job_.servers[0].second = proxy.address();
  ASSERT_TRUE(Attach().ok());
  bool frozen = false;
  Server(0).on_frame = [&](FakeStream*, const DecodedFrame&) {
    if (!frozen) proxy.Freeze();
    frozen = true;
    return false;
  };
  ExpectGoodStep(1, 1);
  EXPECT_TRUE(frozen);
  ExpectBuffersGivenBack();
}

}  // namespace
}  // namespace ballast::client
