// Prints docs/ballastctl.md: ballastctl_reference > docs/ballastctl.md
// Comes from: a developer who changed a command. Goes to: command_reference.
// Thread safety: one thread.
#include <cstdio>
#include <string>

#include "common/system/standard_descriptors.h"
#include "tools/ctl/command_reference.h"

BALLAST_HOLD_STANDARD_DESCRIPTORS_FIRST();

int main() {
  if (!ballast::HoldStandardDescriptors().ok()) return 1;
  const std::string text = ballast::tools::CommandReference();
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  return written && std::fflush(stdout) == 0 ? 0 : 1;
}
