// Prints docs/config.md: ballast_config_reference > docs/config.md
// Comes from: a developer who changed server.proto. Goes to: server/config.
// Thread safety: one thread.
#include <cstdio>
#include <string>

#include "common/system/standard_descriptors.h"
#include "server/config/print.h"

BALLAST_HOLD_STANDARD_DESCRIPTORS_FIRST();

int main() {
  if (!ballast::HoldStandardDescriptors().ok()) return 1;
  const std::string text = ballast::config::Reference();
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  return written && std::fflush(stdout) == 0 ? 0 : 1;
}
