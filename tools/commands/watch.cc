#include "tools/commands/watch.h"

#include <unistd.h>

#include <chrono>
#include <iostream>
#include <sstream>
#include <thread>

#include "absl/strings/str_replace.h"

namespace ballast::tools {
namespace {

// The command's output, errors in front.
std::string Page(const Command& command, const Options& options) {
  std::ostringstream out;
  std::ostringstream errors;
  std::streambuf* const stdout_buffer = std::cout.rdbuf(out.rdbuf());
  std::streambuf* const stderr_buffer = std::cerr.rdbuf(errors.rdbuf());
  command.run(options);
  std::cout.rdbuf(stdout_buffer);
  std::cerr.rdbuf(stderr_buffer);
  return errors.str() + out.str();
}

}  // namespace

int Watch(const Command& command, const Options& options) {
  if (isatty(STDOUT_FILENO) != 1) {
    std::cerr << "ballastctl: --watch redraws a terminal, and stdout is none; leave it out, and "
                 "repeat the command where a script wants more than one answer\n";
    return kUsageError;
  }
  std::cout << "\x1b[H\x1b[2J";
  while (std::cout) {
    const std::string page = Page(command, options);
    // From the top, the rest of each line cleared, then the rest of the screen: no flicker.
    std::cout << "\x1b[H" << absl::StrReplaceAll(page, {{"\n", "\x1b[K\n"}}) << "\x1b[J"
              << std::flush;
    std::this_thread::sleep_for(std::chrono::seconds(options.every_s));
  }
  return kFailure;
}

}  // namespace ballast::tools
