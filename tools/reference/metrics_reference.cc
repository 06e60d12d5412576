// Prints docs/reference/metrics.md:
// ballast_metrics_reference deploy/monitoring/rules.yaml > docs/reference/metrics.md
// Comes from: a developer who changed a metric or an alert. Goes to: metrics_page.h.
// Thread safety: one thread.
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

#include "common/system/standard_descriptors.h"
#include "tools/reference/metrics_page.h"

BALLAST_HOLD_STANDARD_DESCRIPTORS_FIRST();

int main(int argc, char** argv) {
  if (!ballast::HoldStandardDescriptors().ok()) return 1;
  std::ifstream rules(argc == 2 ? argv[1] : "");
  if (!rules) {
    std::fprintf(stderr, "usage: ballast_metrics_reference RULES.YAML\n");
    return 2;
  }
  std::ostringstream text;
  text << rules.rdbuf();
  const std::string page = ballast::tools::MetricsPage(text.str());
  const bool written = std::fwrite(page.data(), 1, page.size(), stdout) == page.size();
  return written && std::fflush(stdout) == 0 ? 0 : 1;
}
