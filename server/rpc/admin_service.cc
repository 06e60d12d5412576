#include "server/rpc/admin_service.h"

#include <memory>
#include <utility>

#include "proto/convert/methods.h"
#include "server/rpc/convert.h"
#include "server/rpc/unary_call.h"

namespace ballast::server {

void CollectStatus(const DirectoryHolder& directory, const ServerFacts& facts,
                   std::function<void(v1::StatusReply)> done) {
  v1::StatusReply reply;
  reply.set_id(facts.id);
  reply.set_version(facts.version);
  reply.set_address(facts.address);
  reply.set_isa(facts.isa);
  for (const PeerState& peer : facts.peers) {
    v1::PeerStatus* added = reply.add_peers();
    added->set_id(peer.id);
    added->set_address(peer.address);
    added->set_reachable(peer.reachable);
  }
  const auto jobs = directory.Get();
  if (!jobs.ok()) {
    done(std::move(reply));
    return;
  }
  reply.set_serving(true);
  reply.set_memory_used_bytes((*jobs)->memory_used_bytes());
  reply.set_memory_budget_bytes((*jobs)->memory_budget_bytes());
  (*jobs)->Snapshot([reply = std::move(reply),
                     done = std::move(done)](const std::vector<JobSnapshot>& snapshots) mutable {
    for (const JobSnapshot& job : snapshots) ToProto(job, reply.add_jobs());
    done(std::move(reply));
  });
}

void AddAdminMethods(GenericServer* server, const DirectoryHolder* directory,
                     std::function<ServerFacts()> facts) {
  server->AddMethod(method::kAdminStatus,
                    UnaryCall::Factory([directory, facts](auto call, const auto&) {
                      CollectStatus(*directory, facts(),
                                    [call](const v1::StatusReply& reply) { call->Reply(reply); });
                    }));
}

}  // namespace ballast::server
