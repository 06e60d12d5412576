#include "server/security/method_table.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ballast::server {
namespace {

constexpr Roles kNoIdentityNeeded{};
constexpr Roles kTrainers{Role::kTrainer};
constexpr Roles kServers{Role::kServer};
constexpr Roles kReaders{Role::kViewer, Role::kOperator, Role::kAdmin};
constexpr Roles kUsers{Role::kTrainer, Role::kOperator, Role::kAdmin};
constexpr Roles kAdmins{Role::kAdmin};
constexpr Roles kListRoles{Role::kTrainer, Role::kViewer, Role::kOperator, Role::kAdmin};

constexpr MethodRow kRows[] = {
    {"/ballast.v1.Control/Attach", kTrainers, Scope::kTenant, false},
    {"/ballast.v1.Control/Extend", kTrainers, Scope::kTenant, false},
    {"/ballast.v1.Control/Rendezvous", kTrainers, Scope::kTenant, false},
    {"/ballast.v1.Control/JobStatus", kTrainers, Scope::kTenant, false},

    {"/ballast.v1.Data/Exchange", kTrainers, Scope::kTenant, false},

    {"/ballast.v1.Peer/Hello", kServers, Scope::kHello, false},
    {"/ballast.v1.Peer/CreateJob", kServers, Scope::kHome, true},
    {"/ballast.v1.Peer/ExtendJob", kServers, Scope::kHome, true},
    {"/ballast.v1.Peer/DropJob", kServers, Scope::kHome, true},
    {"/ballast.v1.Peer/WhichRest", kServers, Scope::kCluster, false},
    {"/ballast.v1.Peer/CompareJobs", kServers, Scope::kCluster, false},
    {"/ballast.v1.Peer/Seal", kServers, Scope::kHome, true},
    {"/ballast.v1.Peer/AdoptEpoch", kServers, Scope::kHome, true},
    {"/ballast.v1.Peer/Vote", kServers, Scope::kPeer, false},
    {"/ballast.v1.Peer/Snapshot", kServers, Scope::kHome, true},
    {"/ballast.v1.Peer/RestoreJob", kServers, Scope::kHome, true},
    {"/ballast.v1.Peer/Export", kServers, Scope::kHome, true},
    {"/ballast.v1.Peer/ImportJob", kServers, Scope::kHome, true},

    {"/ballast.v1.Admin/Status", kReaders, Scope::kTenant, false},
    {"/ballast.v1.Admin/ListJobs", kListRoles, Scope::kTenant, false},
    {"/ballast.v1.Admin/DeleteJob", kUsers, Scope::kTenant, true},
    {"/ballast.v1.Admin/RetryJob", kUsers, Scope::kTenant, true},
    {"/ballast.v1.Admin/CreateSnapshot", kUsers, Scope::kTenant, true},
    {"/ballast.v1.Admin/ListSnapshots", kListRoles, Scope::kTenant, false},
    {"/ballast.v1.Admin/VerifySnapshot", kUsers, Scope::kTenant, true},
    {"/ballast.v1.Admin/DeleteSnapshot", kUsers, Scope::kTenant, true},
    {"/ballast.v1.Admin/RestoreSnapshot", kUsers, Scope::kTenant, true},
    {"/ballast.v1.Admin/Export", kUsers, Scope::kTenant, true},
    {"/ballast.v1.Admin/Import", kUsers, Scope::kTenant, true},
    {"/ballast.v1.Admin/ListTenants", kReaders, Scope::kTenant, false},
    {"/ballast.v1.Admin/Reload", kAdmins, Scope::kServer, true},

    {"/grpc.health.v1.Health/Check", kNoIdentityNeeded, Scope::kOpen, false},
    {"/grpc.health.v1.Health/Watch", kNoIdentityNeeded, Scope::kOpen, false},
};

const char* ScopeText(Scope scope) {
  switch (scope) {
    case Scope::kOpen:
      return "none: no identity is needed";
    case Scope::kTenant:
      return "its tenant's resources";
    case Scope::kCluster:
      return "the cluster";
    case Scope::kServer:
      return "the server that is asked";
    case Scope::kHello:
    case Scope::kPeer:
      return "the server that the message names";
    case Scope::kHome:
      return "the home only";
  }
  return "";
}

}  // namespace

std::string Roles::Text() const {
  std::vector<std::string> names;
  for (const Role role :
       {Role::kTrainer, Role::kViewer, Role::kOperator, Role::kServer, Role::kAdmin}) {
    if (Has(role)) names.push_back(RoleName(role));
  }
  return absl::StrJoin(names, ", ");
}

absl::Span<const MethodRow> MethodTable() { return kRows; }

const MethodRow* FindMethod(absl::string_view method) {
  for (const MethodRow& row : kRows) {
    if (method == row.method) return &row;
  }
  return nullptr;
}

std::string MethodTablePage() {
  std::string page = "| Method | Roles | Scope | Audited |\n|---|---|---|---|\n";
  for (const MethodRow& row : kRows) {
    const std::string roles = row.scope == Scope::kOpen ? "every caller" : row.roles.Text();
    absl::StrAppend(&page, "| `", absl::string_view(row.method).substr(1), "` | ", roles, " | ",
                    ScopeText(row.scope), " | ", row.audited ? "yes" : "", " |\n");
  }
  return page;
}

}  // namespace ballast::server
