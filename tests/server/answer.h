// Answer: holds the answer of an asynchronous call for a test's thread.
// Comes from: tests of engines and directories. Goes to: nothing. Thread safety: thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/sync.h"

namespace ballast::server::testing {

// Hands a callback's result to the test's thread.
template <typename T>
class Answer {
 public:
  std::function<void(T)> Setter() {
    return [state = state_](T value) {
      MutexLock lock(&state->mu);
      state->value.push_back(std::move(value));
      state->cv.NotifyAll();
    };
  }
  T Get() {
    MutexLock lock(&state_->mu);
    while (state_->value.empty()) state_->cv.Wait(&state_->mu);
    return state_->value.front();
  }
  bool Has() {
    MutexLock lock(&state_->mu);
    return !state_->value.empty();
  }

 private:
  struct State {
    Mutex mu;
    CondVar cv;
    std::vector<T> value;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace ballast::server::testing
