// Shared parts of the tests of a durable job's client: a job whose news are kept, and steps that go
// through pauses.
// Thread safety: none; one thread, the test's.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/client/cpp/client_fixture.h"

namespace ballast::client {

class PauseTest : public ClientTest {
 protected:
  void StartJob(size_t servers) {
    StartServers(servers);
    options_.durability = Durability::kProcess;
    options_.on_pause = [this](const Pause& pause) {
      pauses_.push_back(pause);
      if (on_pause_) on_pause_(pause);
    };
    ASSERT_TRUE(Attach().ok());
    for (auto& server : servers_) {
      std::lock_guard<std::mutex> lock(server->mutex());
      server->frames.clear();
    }
  }

  // Breaks the stream after every one of these gradient frames has been taken, counted from 1.
  void BreakAfterFrames(FakeServer* server, std::set<int> counts) {
    server->on_frame = [server, counts, seen = 0](FakeStream* stream, const DecodedFrame&) mutable {
      // This frame and the rest of the handler's work on it are not undone.
      if (counts.count(++seen) > 0) FakeServer::Break(stream);
      return false;
    };
  }

  void AwaitHellos(FakeServer* server, size_t count) {
    while (true) {
      {
        std::lock_guard<std::mutex> lock(server->mutex());
        if (server->hellos.size() >= count) return;
      }
      std::this_thread::yield();
    }
  }

  // A step that continues over `reconnects` returns of a server, and leaves the right weights.
  void ExpectGoodStep(uint64_t round, uint32_t reconnects) {
    const auto report = Step();
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->round, round);
    EXPECT_EQ(report->reconnects, reconnects);
    uint64_t bytes = 0;
    for (const std::string& grad : model_.grads) bytes += grad.size();
    EXPECT_EQ(report->bytes_down, bytes);
    EXPECT_GE(report->bytes_up, bytes);
    EXPECT_TRUE(model_.weights == model_.grads);
    EXPECT_EQ(client_->round(), round + 1);
  }

  static std::vector<std::string> Kinds(const std::vector<Pause>& pauses) {
    std::vector<std::string> kinds;
    for (const Pause& pause : pauses) {
      const char* const names[] = {"lost",     "waiting",      "back",        "replacing",
                                   "replaced", "trainer lost", "trainer back"};
      kinds.push_back(names[static_cast<int>(pause.kind)] + std::to_string(pause.server));
    }
    return kinds;
  }

  // How often each gradient frame of a server has arrived.
  static std::map<std::pair<uint32_t, uint32_t>, int> Arrivals(const FakeServer& server) {
    std::map<std::pair<uint32_t, uint32_t>, int> arrivals;
    for (const DecodedFrame& frame : server.frames) {
      if (frame.header.kind != FrameKind::kGradient) continue;
      ++arrivals[{frame.header.extent, frame.header.offset_bytes}];
    }
    return arrivals;
  }

  std::vector<Pause> pauses_;
  std::function<void(const Pause&)> on_pause_;
};

}  // namespace ballast::client
