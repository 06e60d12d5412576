// `ballastctl reload`: every server reads again the settings that take effect without a restart.
// Comes from: ballastctl. Goes to: every server of the cluster. Thread safety: the main thread.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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

Row ReloadRow(uint32_t server, const v1::ReloadedFile& file) {
  return {absl::StrCat(server), file.setting(), file.path(),
          file.error().empty() ? "read" : absl::StrCat("refused: ", file.error())};
}

std::string ReloadJson(uint32_t server, const v1::ReloadedFile& file) {
  return absl::StrCat("{\"server\": ", server, ", \"setting\": ", JsonText(file.setting()),
                      ", \"path\": ", JsonText(file.path()),
                      ", \"error\": ", file.error().empty() ? "null" : JsonText(file.error()), "}");
}

// Each server has files of its own, so each one is asked.
int Reload(const Options& options) {
  const ClusterView view = AskCluster(options, v1::StatusRequest());
  int code = SayWhoIsSilent(view, options);
  std::vector<Row> rows = {{"SERVER", "SETTING", "FILE", "RESULT"}};
  std::vector<std::string> files;
  for (const v1::StatusReply& server : view.servers) {
    const auto reply = Ask<v1::ReloadReply>(server.address(), method::kAdminReload,
                                            v1::ReloadRequest(), kTimeoutS);
    if (!reply.ok()) {
      code = std::max(code, Failed(server.address(), options, reply.status()));
      continue;
    }
    for (const v1::ReloadedFile& file : reply->files()) {
      rows.push_back(ReloadRow(server.id(), file));
      files.push_back(ReloadJson(server.id(), file));
      if (!file.error().empty()) code = std::max(code, kFailure);
    }
  }
  const int printed =
      Print(options, files.empty() ? "no server has read a file again\n" : server::TextTable(rows),
            absl::StrCat("{\"files\": [", absl::StrJoin(files, ", "), "]}\n"));
  return printed != 0 ? printed : code;
}

}  // namespace

std::vector<Command> ReloadCommands() {
  return {{.name = "reload",
           .help = "every server reads tokens, denied identities, quotas and certificates again",
           .run = Reload}};
}

}  // namespace ballast::tools
