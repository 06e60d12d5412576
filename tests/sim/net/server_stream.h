// SimStream: a server's end of one call over the simulated network, as a MessageStream. Its handler
// runs in events of the server's process, never inside a method. Writes end at once. Comes from:
// SimPort. Goes to: the shipped handlers, the network. Thread safety: one thread.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/stream/method_registry.h"
#include "tests/sim/net/network.h"

namespace ballast::sim {

// A status as its reader gets it: with the parts that travel.
absl::Status OverTheWire(const absl::Status& status);
// Of the simulated servers, whose directories have no settings.
const server::DirectoryNames* NoDirectoryNames();

class SimStream final : public server::MessageStream,
                        public StreamServerEnd,
                        public std::enable_shared_from_this<SimStream> {
 public:
  // Sees each message as it comes and leaves; both may be null.
  struct Sees {
    std::function<void(const Payload&)> up;
    std::function<void(const Outgoing&)> down;
  };

  // Of the server's present process.
  SimStream(World* world, Network* network, StreamPtr stream, Sees sees);

  // Makes its handler, as the stream has come in, and becomes its end.
  void Begin(const server::StreamFactory& factory);
  void Read() override;
  void Kick() override;
  void Finish(const absl::Status& status) override;
  void Cancel() override;

  void OnUp(const Payload& message) override;
  void OnUpEnded() override;
  void OnUpClosed() override;
  // The process has ended. Lets go of the handler, outside of all events.
  void Drop();
  bool over() const { return over_; }

 private:
  // Lets Work happen soon.
  void Wake();
  // Calls the handler for everything there is to be told and asked.
  void Work();
  // Whether there was something.
  bool Hand();
  bool Send();
  // No events but OnDone from now on.
  void End(bool cancelled);

  World* const world_;
  Network* const network_;
  const StreamPtr stream_;
  const Sees sees_;
  std::shared_ptr<server::StreamHandler> handler_;
  std::deque<Payload> inbox_;
  bool up_ended_ = false;
  bool reading_ = false;
  bool woken_ = false;
  bool kicked_ = false;
  bool over_ = false;
  std::optional<absl::Status> final_status_;
};

}  // namespace ballast::sim
