// Finds out whether a TLS handshake keeps a server away: gRPC reports a refused handshake as a
// closed socket. Asks after some tries without an answer, and again after as many more, because
// causes change. Comes from: ServerLink. Goes to: Transport::Explain. Thread safety: none; lives
// under the session's lock.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "client/cpp/transport/link.h"

namespace ballast::client {

class HandshakeDiagnosis {
 public:
  HandshakeDiagnosis(std::string address, Transport* transport)
      : address_(std::move(address)), transport_(transport) {}

  // A link has ended with `status`, not a server's own. Asks after every third one without a cause.
  // Returns how the server was lost, for people.
  std::string OnClosed(const absl::Status& status);
  // Asks now, once until the server has answered: a link waits for a connection.
  void OnSilence();
  // How a silent server was lost, for people.
  std::string Silent() const;
  // The server has answered: forgets the cause.
  void OnBack();

  // Error of the newest handshake, as a clause for people; "": none, or not tried.
  const std::string& cause() const { return cause_; }

 private:
  void Ask();

  const std::string address_;
  Transport* const transport_;
  bool asked_ = false;                    // since OnBack
  int silent_tries_ = 0;                  // since the newest question
  std::unique_ptr<CallHandle> question_;  // under way
  std::string cause_;
};

}  // namespace ballast::client
