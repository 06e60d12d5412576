// What the kernel knows of this process, under the names every Prometheus client uses.
// Comes from: /proc/self. Goes to: a MetricRegistry. Thread safety: any thread.
#pragma once

#include "common/metrics/registry.h"

namespace ballast {

// Declares process_resident_memory_bytes, process_cpu_seconds_total, process_open_fds,
// process_max_fds and process_start_time_seconds, read at each scrape. A value that cannot be read
// is 0.
void AddProcessMetrics(MetricRegistry* registry);

}  // namespace ballast
