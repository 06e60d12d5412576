#include "tests/sim/world/program.h"

namespace ballast::sim {

SimProgram::SimProgram(World* world, NodeId node, std::function<void()> body)
    : world_(world), node_(node), fiber_(std::make_shared<Fiber>(std::move(body))) {
  Wake();
}

void SimProgram::End() {
  if (std::exchange(ended_, true) || fiber_.get() == Fiber::Current()) return;
  if (fiber_->paused()) fiber_->Finish();
}

std::function<void()> SimProgram::Ends(uint64_t wait) {
  return [this, weak = std::weak_ptr(fiber_), wait] {
    const std::shared_ptr<Fiber> fiber = weak.lock();
    if (fiber != nullptr && !ended_ && !fiber->ended() && wait == waits_) fiber->Resume();
  };
}

bool SimProgram::Wait() {
  if (ended_) return false;
  ++waits_;
  fiber_->Pause();
  return !ended_;
}

bool SimProgram::WaitFor(Tick at_most) {
  if (ended_) return false;
  world_->clock(node_)->After(at_most + 1, EventKind::kTimer, Ends(waits_ + 1));
  return Wait();
}

}  // namespace ballast::sim
