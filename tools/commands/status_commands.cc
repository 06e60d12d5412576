// `ballastctl status`.
// Comes from: ballastctl. Goes to: the servers' Admin service. Thread safety: the main thread.
#include <algorithm>

#include "ballast/v1/admin.pb.h"
#include "proto/convert/methods.h"
#include "server/status/status_text.h"
#include "tools/ctl/admin_call.h"
#include "tools/ctl/command.h"
#include "tools/ctl/output.h"

namespace ballast::tools {
namespace {

int Status(const Options& options) {
  std::vector<v1::StatusReply> replies;
  int code = 0;
  for (const std::string& endpoint : options.endpoints) {
    absl::StatusOr<v1::StatusReply> reply =
        Ask<v1::StatusReply>(endpoint, method::kAdminStatus, v1::StatusRequest(), kTimeoutS);
    if (reply.ok()) {
      replies.push_back(*std::move(reply));
      continue;
    }
    code = std::max(code, Failed(endpoint, options, reply.status()));
  }
  if (replies.empty() && options.form == Form::kTable) return code;
  return std::max(Print(options, server::StatusTable(replies), server::StatusJson(replies)), code);
}

}  // namespace

std::vector<Command> StatusCommands() {
  return {
      {.name = "status",
       .help = "servers, jobs, and which trainer owes what of the open round",
       .run = Status,
       .flags = {"--watch", "--every"}},
  };
}

}  // namespace ballast::tools
