#include "server/peer/peer_caller.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "ballast/v1/peer.pb.h"
#include "proto/convert/job_convert.h"
#include "proto/convert/methods.h"
#include "server/peer/peer_sightings.h"

namespace ballast::server {
namespace {

constexpr char kToldNoNumber[] =
    "has not told this server its number yet: it starts, waits for its peers file, or does not "
    "reach this server";

Payload OwnHello(const PeerLinkConfig& config, uint32_t server) {
  v1::PeerHello hello;
  *hello.mutable_protocol() = OwnProtocolRange();
  hello.set_id(config.self);
  hello.set_incarnation(config.incarnation);
  if (config.sightings != nullptr) config.sightings->Fill(&hello);
  if (config.numbers != nullptr) {
    hello.set_number(config.numbers->NumberFor(server));
    hello.set_held_hash(config.numbers->HeldHash(server));
  }
  return MessageBytes(hello);
}

absl::Status NotOfThisCluster(uint32_t self, uint32_t server) {
  return ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kServerRemoved,
                       absl::StrCat("cluster.peers of server ", self, " lacks server ", server,
                                    ": give all servers the same list, and restart them"),
                       {.server = static_cast<int>(self)});
}

}  // namespace

bool MayPass(const absl::Status& status) {
  return status.code() == absl::StatusCode::kUnavailable ||
         status.code() == absl::StatusCode::kDeadlineExceeded;
}

PeerCaller::PeerCaller(const PeerLinkConfig& config, std::unique_ptr<PeerTransport> transport)
    : config_(config), transport_(std::move(transport)) {
  for (const ServerAddress& server : config.servers) {
    if (server.id != config.self) addresses_[server.id] = server.address;
  }
}

void PeerCaller::Stop() {
  stopping_ = true;
  transport_->Stop();
}

void PeerCaller::Call(uint32_t server, const PeerCallOptions& options, const Payload& request,
                      Done done) {
  if (config_.numbers == nullptr) return Send(server, options, request, std::move(done));
  const auto number = config_.numbers->HeaderTo(server, config_.self);
  if (number.has_value()) return SendNumbered(server, options, *number, request, std::move(done));
  SayHello(server, options.wait_for_ready,
           [=, this, done = std::move(done)](const absl::StatusOr<Payload>& said) {
             if (!said.ok()) return done(said.status());
             const auto told = config_.numbers->HeaderTo(server, config_.self);
             if (told.has_value()) return SendNumbered(server, options, *told, request, done);
             done(StillStarting({server, AddressOf(server)}, kToldNoNumber));
           });
}

void PeerCaller::SendNumbered(uint32_t server, PeerCallOptions options, const std::string& number,
                              const Payload& request, Done done) {
  options.number = number;
  Send(server, options, request,
       [this, server, done = std::move(done)](const absl::StatusOr<Payload>& answer) {
         answer.ok() ? done(answer) : done(AfterNumbered(server, answer.status()));
       });
}

absl::Status PeerCaller::AfterNumbered(uint32_t server, const absl::Status& status) {
  const bool refused = status.code() == absl::StatusCode::kUnauthenticated;
  if (refused || (MayPass(status) && ReasonOf(status) == Reason::kUnspecified)) {
    config_.numbers->Doubt(server);
  }
  if (!refused) return status;
  return StillStarting({server, AddressOf(server)},
                       absl::StrCat(kToldNoNumber, "; it says: ", status.message()));
}

void PeerCaller::Send(uint32_t server, const PeerCallOptions& options, const Payload& request,
                      Done done) {
  const auto address = addresses_.find(server);
  if (address == addresses_.end()) return done(NotOfThisCluster(config_.self, server));
  transport_->Call(address->second, options, request, std::move(done));
}

void PeerCaller::SayHello(uint32_t server, bool wait_for_ready, Done done) {
  const PeerCallOptions options{method::kPeerHello, config_.report_after, wait_for_ready, ""};
  if (config_.numbers == nullptr) {
    return Send(server, options, OwnHello(config_, server), std::move(done));
  }
  Send(server, options, OwnHello(config_, server),
       [this, server, done = std::move(done)](const absl::StatusOr<Payload>& answer) {
         v1::PeerHello hello;
         if (Parse(answer, &hello).ok() && hello.id() == server) {
           config_.numbers->Answered(server, hello.number_hash());
         } else {
           config_.numbers->Doubt(server);
         }
         done(answer);
       });
}

void PeerCaller::CallOnceConnected(uint32_t server, const char* method, const Payload& request,
                                   Done done) {
  SayHello(server, true, [=, this, done = std::move(done)](const absl::StatusOr<Payload>&) {
    Call(server, {method, kWholeStateTimeout, false, ""}, request, done);
  });
}

}  // namespace ballast::server
