// The interface of a session to the outside: links to servers, calls, and time. gRPC is one
// transport (grpc_transport.h); a test or a simulator can be another.
// tests/client/cpp/transport/link_conformance.h specifies every transport. Comes from: SessionCore.
// Goes to: the servers of a job. Thread safety: a transport is made with one lock. Every method and
// every callback of this file runs under that lock, AwaitEnded excepted.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/bytes/outgoing.h"
#include "common/bytes/payload.h"

namespace google::protobuf {
class MessageLite;
}  // namespace google::protobuf

namespace ballast::client {

using Time = std::chrono::steady_clock::time_point;

// Receives a link's messages, and supplies those to send.
class LinkHandler {
 public:
  virtual ~LinkHandler() = default;
  // One message of the server. Its bytes stay valid while a copy of `message` is held.
  virtual void OnMessage(const Payload& message) = 0;
  // The next message to send. The link asks when it has passed the last one on, and on Kick.
  virtual std::optional<Outgoing> NextMessage() = 0;
  // The link has ended, and nothing of it is under way. Called once. An UNAVAILABLE without a
  // reason says that the server cannot be reached; a server's own error keeps its reason.
  virtual void OnClosed(const absl::Status& status) = 0;
};

// One ordered stream of messages in both directions. Its destruction breaks it off: its handler
// gets no more events, and the transport keeps the remaining operations until they end.
class Link {
 public:
  virtual ~Link() = default;
  // NextMessage may have something.
  virtual void Kick() = 0;
  // Closes this side as soon as NextMessage has nothing more.
  virtual void HalfClose() = 0;
  // Breaks the link off; OnClosed follows.
  virtual void Cancel() = 0;
  // OnClosed has been called.
  virtual bool closed() const = 0;
};

// A request under way. Its destruction ends it without an answer.
class CallHandle {
 public:
  virtual ~CallHandle() = default;
};

// Fires once for each Set. Its destruction switches it off.
class Timer {
 public:
  virtual ~Timer() = default;
  // Fires at `due` or soon after, and no longer at the previously set time.
  virtual void Set(Time due) = 0;
};

struct LinkTarget {
  std::string address;  // "host:port"
  // Waits for a server that cannot be reached yet. False: such a server ends the link.
  bool wait_for_server = false;
};

struct CallTarget {
  std::string address;
  const char* method = nullptr;  // proto/convert/methods.h
  std::chrono::milliseconds timeout{0};
};

class Transport {
 public:
  // The serialized answer, or: the server's error with its reason; DEADLINE_EXCEEDED after the
  // timeout; UNAVAILABLE without a reason when the server cannot be reached.
  using Answer = std::function<void(absl::StatusOr<Payload> answer)>;

  // Links, calls and timers end before their transport.
  virtual ~Transport() = default;

  virtual Time Now() const = 0;
  // Opens a link over a connection of its own. `handler` outlives the link and gets no event before
  // Open has returned.
  virtual std::unique_ptr<Link> Open(const LinkTarget& target, LinkHandler* handler) = 0;
  // Sends `request` over a connection of its own; `answer` runs once, after the return.
  virtual std::unique_ptr<CallHandle> Start(const CallTarget& target,
                                            const google::protobuf::MessageLite& request,
                                            Answer answer) = 0;
  // Asks why no connection to `address` succeeds: `told` gets the error of a TLS handshake, as a
  // clause for people, or "". `told` runs once, after the return, unless the question is destroyed
  // before. Null: this transport knows only the status of a link.
  virtual std::unique_ptr<CallHandle> Explain(const std::string& /*address*/,
                                              std::function<void(std::string why)> /*told*/) {
    return nullptr;
  }
  virtual std::unique_ptr<Timer> MakeTimer(std::function<void()> fire) = 0;
  // Bytes of bodies copied on their way out, over all links.
  virtual uint64_t copied_bytes() const = 0;

  // Waits until all destroyed links, calls and timers have ended and read no lent memory; false
  // when `deadline` passed first. Blocks: the caller does not hold the lock.
  virtual bool AwaitEnded(Time deadline) = 0;
};

}  // namespace ballast::client
