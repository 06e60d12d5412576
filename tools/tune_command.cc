// `ballastctl tune nvme` as a command; nvme_tune.h has what it does.
// Comes from: ballastctl. Goes to: nvme_tune. Thread safety: the main thread.
#include "tools/command.h"
#include "tools/nvme_tune.h"

namespace ballast::tools {

std::vector<Command> TuneCommands() {
  return {{"tune nvme",
           "--path DIR...",
           "measure a disk, and print the aio settings that suit it",
           nullptr,
           {},
           "",
           false,
           false,
           TuneMain}};
}

}  // namespace ballast::tools
