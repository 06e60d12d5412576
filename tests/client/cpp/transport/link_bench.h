// The surroundings of a transport in a test of links: its lock, a server that the test plays, and a
// way to let events happen. Comes from: each transport's test. Goes to: link_conformance.h. Thread
// safety: as the classes say.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/transport/link.h"
#include "common/base/sync.h"

namespace ballast::client {

// One server, played by the test. Its methods may be called with and without the lock.
class LinkPeer {
 public:
  virtual ~LinkPeer() = default;
  virtual std::string address() const = 0;
  // Sends a message on the newest link; ends it. Messages sent before arrive before the end.
  virtual void Send(const std::string& message) = 0;
  virtual void End(const absl::Status& status) = 0;
  // Bytes of the messages that came in over all links, oldest first; ends of the client's side.
  virtual std::vector<std::string> received() = 0;
  virtual int half_closes() = 0;
  // Sets its answer to every call: bytes, or an error. Without one it never answers.
  virtual void AnswerCalls(absl::StatusOr<std::string> answer) = 0;
  // Nothing listens at the address any more; something does again.
  virtual void Stop() = 0;
  virtual void Restart() = 0;
};

class LinkBench {
 public:
  virtual ~LinkBench() = default;
  virtual Mutex* mu() = 0;
  virtual Transport* transport() = 0;
  virtual LinkPeer* peer() = 0;
  // Lets events happen until `done`, which runs under the lock, is true; false after too long.
  virtual bool RunUntil(const std::function<bool()>& done) = 0;
};

}  // namespace ballast::client
