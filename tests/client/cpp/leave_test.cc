// A trainer leaves while the job's epoch changes: every server must hear its Leave.
#include <gtest/gtest.h>

#include <mutex>

#include "tests/client/cpp/pause_fixture.h"

namespace ballast::client {
namespace {

class LeaveTest : public PauseTest {
 protected:
  void StartWorld(size_t servers) {
    options_.world = 2;
    StartJob(servers);
  }
  // Slot 1 gets a new process, and this server is the first to say so. Under its lock.
  void Replace(FakeServer* server, uint64_t start_round) {
    job_.NextEpoch(1, start_round);
    server->Adopt();
  }
};

TEST_F(LeaveTest, LeavesAgainInTheNewEpoch) {
  StartWorld(2);
  ExpectGoodStep(1, 0);
  // The new epoch knows nothing of who had left the old one.
  Server(1).on_control = [&, left = false](FakeStream*, const v1::ClientMessage& message) mutable {
    if (!message.has_leave() || left) return false;
    left = true;
    Replace(&Server(1), 2);
    return true;
  };
  EXPECT_TRUE(client_->Leave().ok());
  EXPECT_EQ(Server(0).leaves.size(), 2u);
  EXPECT_EQ(Server(1).leaves.size(), 2u);
}

TEST_F(LeaveTest, LeavesTheOthersToWhenOneServerKnowsThatAllHaveLeft) {
  StartWorld(2);
  ExpectGoodStep(1, 0);
  // The Leaves of all trainers have reached server 1, which follows into the epoch to end there.
  Server(0).on_control = [&, left = false](FakeStream*, const v1::ClientMessage& message) mutable {
    if (!message.has_leave() || left) return false;
    left = true;
    Replace(&Server(0), 2);
    return true;
  };
  Server(1).on_control = [](FakeStream* stream, const v1::ClientMessage& message) {
    if (!message.has_hello() || message.hello().epoch() == 1) return false;
    stream->End(ToGrpc(ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kJobFinished,
                                     "all slots have left")));
    return true;
  };
  EXPECT_TRUE(client_->Leave().ok());
  EXPECT_EQ(Server(0).leaves.size(), 2u);
}

// Server 1 heard the Leave in the old epoch, and takes that along into the new one.
TEST_F(LeaveTest, LeavesTheOthersToWhenOneServerHasHeardItsLeave) {
  StartWorld(2);
  ExpectGoodStep(1, 0);
  bool refused = false;
  Server(0).on_control = [&, left = false](FakeStream*, const v1::ClientMessage& message) mutable {
    if (!message.has_leave() || left) return false;
    left = true;
    Replace(&Server(0), 2);
    return true;
  };
  Server(1).on_control = [&](FakeStream* stream, const v1::ClientMessage& message) {
    if (!message.has_hello() || message.hello().epoch() == 1) return false;
    stream->End(ToGrpc(ReasonedError(absl::StatusCode::kFailedPrecondition,
                                     Reason::kWrongIncarnation, "it has left")));
    return refused = true;
  };
  EXPECT_TRUE(client_->Leave().ok());
  EXPECT_TRUE(refused);
  EXPECT_EQ(Server(0).leaves.size(), 2u);
}

}  // namespace
}  // namespace ballast::client
