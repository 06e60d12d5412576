// A trainer's Leave at the end of its script. Whether the trainer may leave depends on the exit
// code of the process, which Python code never sees. Comes from: module.cc. Goes to:
// ballast/client.h. Thread safety: thread-safe.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "ballast/client.h"

namespace ballast::python {

// When the process ends with exit code 0: leaves the job, waits at most `timeout`, and reports on
// stderr why it could not leave. With another exit code, or after a signal, the servers hear
// nothing, so that the other trainers see this one as lost. A process forked meanwhile does
// neither. `told`: name of the reason of an error that the user knows; no report repeats it. Keeps
// `client` until the process is gone.
void LeaveAtExit(std::shared_ptr<client::Client> client, const std::string& job,
                 const std::string& told, std::chrono::milliseconds timeout);

}  // namespace ballast::python
