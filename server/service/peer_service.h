// Peer service: this server's answers to the other servers of the cluster.
// Comes from: the transport. Goes to: the interfaces of JobApis, RoundEngine. Thread safety: any
// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "server/peer/peer_sightings.h"
#include "server/security/gate.h"
#include "server/service/directory_holder.h"
#include "server/stream/method_registry.h"

namespace ballast::server {

struct PeerIdentity {
  uint32_t id = 0;
  uint64_t incarnation = 0;  // new for each process
  Gate* gate = nullptr;      // null: every caller is believed; outlives the server
  // "host:port" of the admin port, or "" without one; may be called by any thread.
  std::function<std::string()> admin;
  PeerSightings* sightings = nullptr;  // of Hellos; may be null; outlives the server
};

// Adds the methods of ballast.v1.Peer to `server`. `directory` outlives it.
void AddPeerMethods(MethodRegistry* server, const DirectoryHolder* directory,
                    const PeerIdentity& self);

}  // namespace ballast::server
