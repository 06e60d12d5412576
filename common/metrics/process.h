// The kernel's numbers of this process, under the names every Prometheus client uses.
// Comes from: /proc/self. Goes to: a MetricRegistry. Thread safety: any thread.
#pragma once

#include "common/metrics/registry.h"

namespace ballast {

// Adds the series of the families process_*, which are declared: read at each scrape. A value that
// cannot be read is 0.
void AddProcessMetrics(MetricRegistry* registry);

// Bytes of memory that the process has now; 0 where that cannot be read.
double ResidentBytes();

}  // namespace ballast
