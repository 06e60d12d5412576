// `ballastctl tenants`: each tenant's use of each server, and its quota there.
// Comes from: ballastctl. Goes to: every server of the cluster. Thread safety: the main thread.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "ballast/v1/admin.pb.h"
#include "proto/convert/methods.h"
#include "server/status/status_text.h"
#include "tools/commands/cluster_view.h"
#include "tools/ctl/admin_call.h"
#include "tools/ctl/command.h"
#include "tools/ctl/output.h"

namespace ballast::tools {
namespace {

using server::JsonText;
using server::Row;

std::string Number(uint64_t number, bool bytes) {
  return bytes ? server::ShortBytes(number) : absl::StrCat(number);
}

// "3/4"; without a limit "3/-".
std::string UsedOfAllowed(const v1::TenantResource& resource) {
  return absl::StrCat(
      Number(resource.used(), resource.bytes()), "/",
      resource.has_allowed() ? Number(resource.allowed(), resource.bytes()) : std::string("-"));
}

// The first row, when there is none yet, names the columns: "WAITING ATTACHES".
void AddRow(uint32_t server, const v1::Tenant& tenant, std::vector<Row>* rows) {
  if (rows->empty()) {
    Row heads = {"TENANT", "SERVER"};
    for (const v1::TenantResource& resource : tenant.resources()) {
      heads.push_back(
          absl::AsciiStrToUpper(absl::StrReplaceAll(resource.resource(), {{"_", " "}})));
    }
    rows->push_back(std::move(heads));
  }
  Row row = {tenant.tenant(), absl::StrCat(server)};
  for (const v1::TenantResource& resource : tenant.resources()) {
    row.push_back(UsedOfAllowed(resource));
  }
  rows->push_back(std::move(row));
}

std::string TenantJson(uint32_t server, const v1::Tenant& tenant) {
  const auto one_json = [](std::string* out, const v1::TenantResource& one) {
    absl::StrAppend(out, JsonText(one.resource()), ": {\"used\": ", one.used(),
                    ", \"allowed\": ", one.has_allowed() ? absl::StrCat(one.allowed()) : "null",
                    "}");
  };
  return absl::StrCat("{\"tenant\": ", JsonText(tenant.tenant()), ", \"server\": ", server,
                      ", \"resources\": {", absl::StrJoin(tenant.resources(), ", ", one_json),
                      "}}");
}

// Each server counts for itself, so each one is asked.
int Tenants(const Options& options) {
  const ClusterView view = AskCluster(options, v1::StatusRequest());
  int code = SayWhoIsSilent(view, options);
  std::vector<Row> rows;
  std::vector<std::string> tenants;
  bool answered = false;
  for (const v1::StatusReply& server : view.servers) {
    const auto reply = Ask<v1::ListTenantsReply>(server.address(), method::kAdminListTenants,
                                                 v1::ListTenantsRequest(), kTimeoutS);
    if (!reply.ok()) {
      code = std::max(code, Failed(server.address(), options, reply.status()));
      continue;
    }
    answered = true;
    for (const v1::Tenant& tenant : reply->tenants()) {
      AddRow(server.id(), tenant, &rows);
      tenants.push_back(TenantJson(server.id(), tenant));
    }
  }
  std::string text = "no tenant uses anything\n";
  if (!answered) text = code == kNotPermitted ? "not permitted\n" : "no server answers\n";
  const int printed = Print(options, rows.empty() ? text : server::TextTable(rows),
                            absl::StrCat("{\"tenants\": [", absl::StrJoin(tenants, ", "), "]}\n"));
  return printed != 0 ? printed : code;
}

}  // namespace

std::vector<Command> TenantCommands() {
  return {{.name = "tenants",
           .help = "what each tenant uses of each server, and what it may use there",
           .run = Tenants,
           .flags = {"--watch", "--every"}}};
}

}  // namespace ballast::tools
