// Runs one blocking call on a thread. See operation.h.
#include "client/python/binding/operation.h"

#include <thread>
#include <utility>

namespace ballast::python {

Operation::Operation(Body body, std::shared_ptr<std::atomic<bool>> stop)
    : state_(std::make_shared<State>()), stop_(std::move(stop)) {
  std::thread([state = state_, body = std::move(body)]() mutable {
    OperationResult result;
    absl::Status status = body(&result);
    body = nullptr;  // drops its captures before the caller may free them
    MutexLock lock(&state->mutex);
    state->status = std::move(status);
    state->result = std::move(result);
    state->ended = true;
    state->ended_changed.NotifyAll();
  }).detach();
}

bool Operation::Wait(std::chrono::nanoseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  MutexLock lock(&state_->mutex);
  while (!state_->ended) {
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left <= std::chrono::nanoseconds::zero()) return false;
    state_->ended_changed.WaitFor(&state_->mutex, left);
  }
  return true;
}

void Operation::Stop() {
  if (stop_ != nullptr) stop_->store(true);
}

const absl::Status& Operation::status() const { return state_->status; }

const OperationResult& Operation::result() const { return state_->result; }

}  // namespace ballast::python
