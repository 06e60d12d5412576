// Admin service, and the same facts for /statusz: the state of this server, its peers and its jobs.
// Comes from: the transport, server main. Goes to: the interfaces of JobApis, PeerClient.
// Thread safety: any thread.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "ballast/v1/admin.pb.h"
#include "common/threads/executor.h"
#include "server/host/disk_state.h"
#include "server/peer/peer_client.h"
#include "server/security/reread_files.h"
#include "server/service/directory_holder.h"
#include "server/stream/method_registry.h"

namespace ballast::server {

struct ServerFacts {
  uint32_t id = 0;
  std::string version;
  std::string address;  // told to trainers
  std::string isa;
  std::vector<PeerState> peers;
  std::vector<DiskState> disks;
  std::vector<std::string> cluster_problems;  // PeerSightings::Problems
  std::string instead;           // of serving; empty: it serves where there is a directory
  uint64_t explained_bytes = 0;  // As StatusReply's, and the next.
  uint32_t jobs_max = 0;
  // Why changed files are not in force, a sentence each.
  std::vector<std::string> file_faults;
  std::string admin;  // "host:port" of the admin port, as peers reach it; empty without one
  double resident_bytes = 0;
  std::chrono::nanoseconds up{0};
};

// Calls `done`, now or on the directory's strand, with everything known at the moment. Before the
// directory exists, `serving` is false and there are no jobs. `request` selects how much history to
// return. A caller of a tenant gets that tenant's jobs, and no server facts that could concern
// other tenants: no events, memory, works or file faults.
void CollectStatus(const DirectoryHolder& directory, const ServerFacts& facts,
                   const v1::StatusRequest& request, const Caller& caller,
                   std::function<void(v1::StatusReply)> done);

// Adds the methods of ballast.v1.Admin to `server`. `directory` outlives it; `facts` may be called
// from any thread.
void AddAdminMethods(MethodRegistry* server, const DirectoryHolder* directory,
                     std::function<ServerFacts()> facts);

// Adds Admin/Reload. `reload` reads files, on `executor`, and reports the result of each.
void AddReloadMethod(MethodRegistry* server, Executor* executor,
                     std::function<std::vector<FileOutcome>()> reload);

}  // namespace ballast::server
