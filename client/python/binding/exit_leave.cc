// The handler of exit(3) that knows the exit code. See exit_leave.h.
#include "client/python/binding/exit_leave.h"

#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "ballast/error.h"
#include "client/python/binding/operation.h"

namespace ballast::python {
namespace {

// As the parent of the process sees it.
constexpr int kExitCodeMask = 0xff;

// Never freed: the client's threads run until the process is gone.
struct Ending {
  std::shared_ptr<client::Client> client;
  std::string job;
  std::string told;
  std::chrono::milliseconds timeout;
  pid_t pid = getpid();
};

void OnExit(int status, void* argument) {
  const auto* const ending = static_cast<const Ending*>(argument);
  if (getpid() != ending->pid) return;
  if ((status & kExitCodeMask) != 0) {
    ending->client->Abort();
    return;
  }
  const auto* const client = &ending->client;
  Operation leave([client](OperationResult*) { return (*client)->Leave(); });
  if (!leave.Wait(ending->timeout)) {
    ending->client->Abort();
  } else if (!leave.status().ok()) {
    const std::string reason = client::GetErrorInfo(leave.status()).reason_name;
    if (reason == ending->told) return;
    const std::string text(leave.status().message());
    std::fprintf(stderr, "ballast: closing job '%s': %s [%s]\n", ending->job.c_str(), text.c_str(),
                 reason.c_str());
  }
}

}  // namespace

void LeaveAtExit(std::shared_ptr<client::Client> client, const std::string& job,
                 const std::string& told, std::chrono::milliseconds timeout) {
  auto* const ending = new Ending{std::move(client), job, told, timeout};
  if (on_exit(&OnExit, ending) != 0) ending->client->Abort();
}

}  // namespace ballast::python
