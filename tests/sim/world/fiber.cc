#include "tests/sim/world/fiber.h"

#include <array>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace ballast::sim {
namespace {

constexpr size_t kStackBytes = 256 << 10;

thread_local Fiber* t_current = nullptr;

// Stacks are used again: most of a run's tasks need one for a moment.
std::vector<std::unique_ptr<char[]>>* FreeStacks() {
  static thread_local std::vector<std::unique_ptr<char[]>> free;
  return &free;
}

std::unique_ptr<char[]> TakeStack() {
  if (FreeStacks()->empty()) return std::unique_ptr<char[]>(new char[kStackBytes]);
  std::unique_ptr<char[]> stack = std::move(FreeStacks()->back());
  FreeStacks()->pop_back();
  return stack;
}

// AddressSanitizer has to know which stack is in use. `fake`: where the one that is left keeps its
// own data; null: it is left for good.
void BeforeSwitch([[maybe_unused]] void** fake, [[maybe_unused]] const void* stack,
                  [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(fake, stack, bytes);
#endif
}

// `stack`, `bytes`: of the one that was left.
void AfterSwitch([[maybe_unused]] void* fake, [[maybe_unused]] const void** stack,
                 [[maybe_unused]] size_t* bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake, stack, bytes);
#endif
}

}  // namespace

Fiber* Fiber::Current() { return t_current; }

void Fiber::Enter() {
  Fiber* const self = t_current;
  AfterSwitch(nullptr, &self->resumer_stack_, &self->resumer_bytes_);
  self->body_();
  self->body_ = nullptr;
  self->ended_ = true;
  BeforeSwitch(nullptr, self->resumer_stack_, self->resumer_bytes_);
  swapcontext(&self->own_, &self->resumer_);
}

void Fiber::Resume() {
  if (stack_ == nullptr) {
    stack_ = TakeStack();
    getcontext(&own_);
    own_.uc_stack.ss_sp = stack_.get();
    own_.uc_stack.ss_size = kStackBytes;
    own_.uc_link = nullptr;
    makecontext(&own_, &Fiber::Enter, 0);
  }
  Fiber* const outer = std::exchange(t_current, this);
  void* fake = nullptr;
  BeforeSwitch(&fake, stack_.get(), kStackBytes);
  swapcontext(&resumer_, &own_);
  AfterSwitch(fake, nullptr, nullptr);
  t_current = outer;
  if (ended_) FreeStacks()->push_back(std::move(stack_));
}

void Fiber::Pause() {
  void* fake = nullptr;
  BeforeSwitch(&fake, resumer_stack_, resumer_bytes_);
  swapcontext(&own_, &resumer_);
  AfterSwitch(fake, &resumer_stack_, &resumer_bytes_);
}

void Fiber::Finish() {
  finishing_ = true;
  while (!ended_) Resume();
}

}  // namespace ballast::sim
