// Fiber: a task with a stack of its own. It can pause in its middle, so that other events run, and
// continue there later: a flush takes virtual time in this way.
// Comes from: SimExecutor, SimProgram. Goes to: World (GiveWay). Thread safety: one thread.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

namespace ballast::sim {

class Fiber : public std::enable_shared_from_this<Fiber> {
 public:
  explicit Fiber(std::function<void()> body) : body_(std::move(body)) {}
  // The body has ended, or has never begun.
  ~Fiber() = default;
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs the body until it pauses or ends.
  void Resume();
  // Runs the body to its end; it pauses no more.
  void Finish();
  bool ended() const { return ended_; }
  // Has begun, and has not ended. Not to be asked in the body.
  bool paused() const { return stack_ != nullptr; }

  // The one whose body runs, or null.
  static Fiber* Current();
  // In its own body: returns to the code that resumed it.
  void Pause();
  bool may_pause() const { return !finishing_; }

 private:
  static void Enter();

  std::function<void()> body_;
  std::unique_ptr<char[]> stack_;  // while the body runs or is paused
  ucontext_t own_;
  ucontext_t resumer_;
  const void* resumer_stack_ = nullptr;  // for AddressSanitizer
  size_t resumer_bytes_ = 0;
  bool ended_ = false;
  bool finishing_ = false;
};

}  // namespace ballast::sim
