// The queue between a client and Python. See pause_queue.h.
#include "client/python/binding/pause_queue.h"

#include <cstddef>
#include <iterator>

namespace ballast::python {
namespace {

constexpr size_t kNewsMax = 64;

}  // namespace

std::function<void(const client::Pause&)> PauseQueue::Listener() const {
  return [state = state_](const client::Pause& pause) {
    MutexLock lock(&state->mutex);
    if (state->news.size() == kNewsMax) state->news.pop_front();
    state->news.push_back(pause);
  };
}

std::vector<client::Pause> PauseQueue::Take() {
  MutexLock lock(&state_->mutex);
  std::vector<client::Pause> taken(std::make_move_iterator(state_->news.begin()),
                                   std::make_move_iterator(state_->news.end()));
  state_->news.clear();
  return taken;
}

}  // namespace ballast::python
