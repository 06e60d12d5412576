// docs/reference/metrics.md: every metric of a server, and the alerts and recorded series that use
// it. Comes from: the declarations and deploy/monitoring/rules.yaml. Goes to: metrics_reference.cc.
// Thread safety: pure functions.
#pragma once

#include <map>
#include <set>
#include <string>

#include "absl/strings/string_view.h"

namespace ballast::tools {

// The names of alerts and recorded series in the text of a rules file, each with all names of
// metrics in its expression. An alert on a recorded series uses the metrics of that series.
std::map<std::string, std::set<std::string>> MetricsOfRules(absl::string_view rules_yaml);

// The page.
std::string MetricsPage(absl::string_view rules_yaml);

}  // namespace ballast::tools
