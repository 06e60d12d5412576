// ballastctl: the state servers' knowledge, for operators and scripts. docs/ballastctl.md is its
// page. Results go to stdout, everything else to stderr.
// Comes from: the operator. Goes to: the commands. Thread safety: the main thread.
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/system/standard_descriptors.h"
#include "common/text/inert.h"
#include "tools/commands/watch.h"
#include "tools/ctl/admin_call.h"
#include "tools/ctl/command_line.h"

namespace ballast::tools {
namespace {

// Each file by its flag, or else by its variable.
ClientSecurity SecurityOf(const Options& options) {
  const auto value = [](const std::string& flag, const char* variable) {
    const char* const text = std::getenv(variable);
    return flag.empty() && text != nullptr ? std::string(text) : flag;
  };
  return {{value(options.tls_ca, "BALLAST_TLS_CA"), value(options.tls_cert, "BALLAST_TLS_CERT"),
           value(options.tls_key, "BALLAST_TLS_KEY")},
          value(options.token_file, "BALLAST_TOKEN_FILE")};
}

int WrongUsage(const absl::Status& status, const std::string& see) {
  std::cerr << "ballastctl: " << Inert(status.message()) << "; see ballastctl " << see
            << "--help\n";
  return kUsageError;
}

int Run(const Command& command, const std::vector<std::string>& arguments) {
  if (command.run_unparsed != nullptr) return command.run_unparsed(arguments);
  const absl::StatusOr<Options> options = ParseOptions(command, arguments);
  if (options.ok() && command.asks_servers && !options->help) {
    auto channels = ChannelFactory::Create(SecurityOf(*options),
                                           [] { return static_cast<int64_t>(std::time(nullptr)); });
    if (!channels.ok()) return WrongUsage(channels.status(), absl::StrCat(command.name, " "));
    UseChannels(*std::move(channels));
  }
  if (!options.ok()) return WrongUsage(options.status(), absl::StrCat(command.name, " "));
  const bool live = command.live && options->form == Form::kTable && isatty(STDOUT_FILENO) == 1;
  if ((options->watch || live) && !options->help) return Watch(command, *options);
  if (!options->help) return command.run(*options);
  std::cout << HelpText(command);
  return std::cout.flush() ? 0 : kFailure;
}

int Main(const std::vector<std::string>& arguments) {
  // Unreachable servers are reported by us, in one line.
  setenv("GRPC_VERBOSITY", "NONE", 0);
  const std::string first = arguments.empty() ? "" : arguments[0];
  if (first == "--help" || first == "-h") {
    std::cout << HelpText();
    return std::cout.flush() ? 0 : kFailure;
  }
  if (first == "--version") {
    std::cout << "ballastctl " << BALLAST_VERSION << "\n";
    return std::cout.flush() ? 0 : kFailure;
  }
  const bool asks_help = arguments.size() > 1 && (arguments[1] == "--help" || arguments[1] == "-h");
  if (const std::string help = GroupHelpText(first); asks_help && !help.empty()) {
    std::cout << help;
    return std::cout.flush() ? 0 : kFailure;
  }
  const absl::StatusOr<const Command*> command = FindCommand(arguments);
  if (!command.ok()) return WrongUsage(command.status(), "");
  const auto words = static_cast<std::ptrdiff_t>(NameWords(**command));
  return Run(**command, {arguments.begin() + words, arguments.end()});
}

}  // namespace
}  // namespace ballast::tools

BALLAST_HOLD_STANDARD_DESCRIPTORS_FIRST();

int main(int argc, char** argv) {
  return ballast::tools::Main(std::vector<std::string>(argv + 1, argv + argc));
}
