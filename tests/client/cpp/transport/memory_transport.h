// A transport of the client without threads: links, calls and timers are events of a virtual clock.
// Servers are MemoryPeers, which a test plays.
// Comes from: link conformance, tests of SessionCore. Thread safety: one thread. The lock exists
// for the interface; RunUntil holds it while events run.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/transport/link.h"
#include "common/base/sync.h"
#include "google/protobuf/message_lite.h"
#include "tests/client/cpp/transport/link_bench.h"

namespace ballast::client {

// Virtual time, and its events.
class EventQueue {
 public:
  Time now() const { return now_; }
  // Runs `event` at `at`, or now when that has passed; events of one time in the order of posting.
  void Post(Time at, std::function<void()> event) {
    events_.emplace(std::max(at, now_), std::move(event));
  }
  void PostSoon(std::function<void()> event) { Post(now_ + kLatency, std::move(event)); }
  // Runs the next event; false when there is none.
  bool RunOne() {
    if (events_.empty()) return false;
    auto next = events_.extract(events_.begin());
    now_ = next.key();
    next.mapped()();
    return true;
  }

 private:
  static constexpr std::chrono::microseconds kLatency{50};

  Time now_ = Time(std::chrono::hours(1));
  std::multimap<Time, std::function<void()>> events_;
};

class MemoryPeer;

// One stream, of which the client holds a handle until it drops it.
struct MemoryStream {
  LinkHandler* handler = nullptr;  // null: dropped, or ended
  MemoryPeer* peer = nullptr;
  bool connected = false;
  bool closed = false;
  bool half_close_wanted = false;
  bool half_closed = false;
  std::optional<Outgoing> in_flight;
};
using MemoryStreamPtr = std::shared_ptr<MemoryStream>;

class MemoryPeer final : public LinkPeer {
 public:
  using OnMessage = std::function<void(const std::string& message)>;

  MemoryPeer(EventQueue* events, std::string address)
      : events_(events), address_(std::move(address)) {}

  OnMessage on_message;  // sees every message
  int opened = 0;        // links so far

  std::string address() const override { return address_; }
  void Send(const std::string& message) override {
    events_->PostSoon([stream = newest_, message] {
      if (stream->handler != nullptr) stream->handler->OnMessage(Payload::FromString(message));
    });
  }
  void End(const absl::Status& status) override {
    events_->PostSoon([this, stream = newest_, status] { Close(stream, status); });
  }
  std::vector<std::string> received() override { return received_; }
  int half_closes() override { return half_closes_; }
  void AnswerCalls(absl::StatusOr<std::string> answer) override { answer_ = std::move(answer); }
  const std::optional<absl::StatusOr<std::string>>& answer() const { return answer_; }
  void Stop() override {
    listening_ = false;
    for (const MemoryStreamPtr& stream : std::exchange(streams_, {})) {
      events_->PostSoon([this, stream] { Close(stream, absl::UnavailableError("peer is gone")); });
    }
  }
  void Restart() override {
    listening_ = true;
    for (const MemoryStreamPtr& stream : std::exchange(waiting_, {})) Connect(stream, true);
  }
  bool listening() const { return listening_; }

  // The client's side.
  void Connect(const MemoryStreamPtr& stream, bool wait_for_server) {
    events_->PostSoon([this, stream, wait_for_server] {
      if (stream->handler == nullptr) return;
      if (!listening_ && wait_for_server) {
        waiting_.push_back(stream);
      } else if (!listening_) {
        Close(stream, absl::UnavailableError("nothing listens there"));
      } else {
        ++opened;
        stream->connected = true;
        streams_.insert(stream);
        newest_ = stream;
        Pump(stream);
      }
    });
  }
  // Sends one message after the other, and then the half-close that is wanted.
  void Pump(const MemoryStreamPtr& stream) {
    if (!stream->connected || stream->closed || stream->half_closed || stream->in_flight ||
        stream->handler == nullptr) {
      return;
    }
    stream->in_flight = stream->handler->NextMessage();
    if (stream->in_flight) {
      events_->PostSoon([this, stream] { Deliver(stream); });
    } else if (stream->half_close_wanted) {
      stream->half_closed = true;
      events_->PostSoon([this] { ++half_closes_; });
    }
  }
  void Close(const MemoryStreamPtr& stream, const absl::Status& status) {
    if (stream->closed) return;
    stream->closed = true;
    stream->in_flight.reset();
    streams_.erase(stream);
    if (LinkHandler* const handler = stream->handler) handler->OnClosed(status);
  }
  void Drop(const MemoryStreamPtr& stream) {
    stream->handler = nullptr;
    stream->closed = true;
    stream->in_flight.reset();
    streams_.erase(stream);
  }

 private:
  void Deliver(const MemoryStreamPtr& stream) {
    if (!stream->in_flight) return;
    const std::string message = stream->in_flight->head + stream->in_flight->body.ToString();
    stream->in_flight.reset();
    received_.push_back(message);
    if (on_message) on_message(message);
    Pump(stream);
  }

  EventQueue* const events_;
  const std::string address_;
  bool listening_ = true;
  MemoryStreamPtr newest_ = std::make_shared<MemoryStream>();
  std::set<MemoryStreamPtr> streams_;
  std::vector<MemoryStreamPtr> waiting_;
  std::vector<std::string> received_;
  std::optional<absl::StatusOr<std::string>> answer_;
  int half_closes_ = 0;
};

class MemoryTransport final : public Transport {
 public:
  explicit MemoryTransport(EventQueue* events) : events_(events) {}

  std::map<std::string, std::string> explanations;  // by address: the server's explanation in a
                                                    // handshake
  int explained = 0;                                // questions so far

  // Makes a server that listens at `address`.
  MemoryPeer* AddPeer(const std::string& address) {
    return &peers_.try_emplace(address, events_, address).first->second;
  }

  Time Now() const override { return events_->now(); }
  std::unique_ptr<Link> Open(const LinkTarget& target, LinkHandler* handler) override {
    auto stream = std::make_shared<MemoryStream>();
    stream->handler = handler;
    stream->peer = &peers_.at(target.address);
    stream->peer->Connect(stream, target.wait_for_server);
    return std::make_unique<Handle>(events_, stream);
  }
  std::unique_ptr<CallHandle> Start(const CallTarget& target, const google::protobuf::MessageLite&,
                                    Answer answer) override {
    auto pending = std::make_shared<Answer>(std::move(answer));
    const auto finish = [pending](absl::StatusOr<Payload> result) {
      if (const Answer done = std::exchange(*pending, nullptr)) done(std::move(result));
    };
    events_->PostSoon([peer = &peers_.at(target.address), finish] {
      if (!peer->listening()) return finish(absl::UnavailableError("nothing listens there"));
      if (!peer->answer()) return;
      if (!peer->answer()->ok()) return finish(peer->answer()->status());
      finish(Payload::FromString(**peer->answer()));
    });
    events_->Post(events_->now() + target.timeout,
                  [finish] { finish(absl::DeadlineExceededError("no answer in time")); });
    return std::make_unique<PendingCall>(pending);
  }
  std::unique_ptr<CallHandle> Explain(const std::string& address,
                                      std::function<void(std::string)> told) override {
    ++explained;
    auto pending = std::make_shared<Answer>(
        [told = std::move(told)](absl::StatusOr<Payload> why) { told(why->ToString()); });
    events_->PostSoon([this, address, pending] {
      const Answer done = std::exchange(*pending, nullptr);
      if (done) done(Payload::FromString(explanations[address]));
    });
    return std::make_unique<PendingCall>(pending);
  }
  std::unique_ptr<Timer> MakeTimer(std::function<void()> fire) override {
    return std::make_unique<VirtualTimer>(events_, std::move(fire));
  }
  uint64_t copied_bytes() const override { return 0; }
  bool AwaitEnded(Time) override { return true; }  // dropped links end at once

 private:
  class Handle final : public Link {
   public:
    Handle(EventQueue* events, MemoryStreamPtr stream)
        : events_(events), stream_(std::move(stream)) {}
    ~Handle() override { stream_->peer->Drop(stream_); }
    void Kick() override { stream_->peer->Pump(stream_); }
    void HalfClose() override {
      stream_->half_close_wanted = true;
      Kick();
    }
    void Cancel() override {
      events_->PostSoon(
          [stream = stream_] { stream->peer->Close(stream, absl::CancelledError("cancelled")); });
    }
    bool closed() const override { return stream_->closed; }

   private:
    EventQueue* const events_;
    const MemoryStreamPtr stream_;
  };

  class PendingCall final : public CallHandle {
   public:
    explicit PendingCall(std::shared_ptr<Answer> answer) : answer_(std::move(answer)) {}
    ~PendingCall() override { *answer_ = nullptr; }

   private:
    const std::shared_ptr<Answer> answer_;
  };

  class VirtualTimer final : public Timer {
   public:
    VirtualTimer(EventQueue* events, std::function<void()> fire)
        : events_(events), fire_(std::make_shared<std::function<void()>>(std::move(fire))) {}
    ~VirtualTimer() override { ++*sets_; }
    void Set(Time due) override {
      events_->Post(due, [fire = fire_, sets = sets_, set = ++*sets_] {
        if (*sets == set) (*fire)();
      });
    }

   private:
    EventQueue* const events_;
    const std::shared_ptr<std::function<void()>> fire_;
    const std::shared_ptr<uint64_t> sets_ = std::make_shared<uint64_t>(0);
  };

  EventQueue* const events_;
  std::map<std::string, MemoryPeer> peers_;
};

}  // namespace ballast::client
