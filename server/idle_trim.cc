#include "server/idle_trim.h"

#include <utility>

namespace ballast::server {
namespace {

// Less is not worth the page faults that follow.
constexpr uint64_t kWorthATrim = 8 << 20;
// An interval is quiet with less than this part of what waits. Hellos and votes of peers, and
// connections that end, never stop; at a steady rate of any size the trim comes after this many.
constexpr uint64_t kQuietPart = 32;

}  // namespace

std::shared_ptr<IdleTrim> IdleTrim::Start(IdleTrimOptions options, Executor* executor) {
  const std::shared_ptr<IdleTrim> trim(new IdleTrim(std::move(options), executor));
  trim->Later();
  return trim;
}

IdleTrim::IdleTrim(IdleTrimOptions options, Executor* executor)
    : options_(std::move(options)), executor_(executor) {}

void IdleTrim::Later() {
  executor_->PostAfter(options_.interval, [weak = weak_from_this()] {
    if (const auto trim = weak.lock()) trim->Look();
  });
}

void IdleTrim::Look() {
  const uint64_t released = options_.released();
  waiting_ += released;
  if (waiting_ >= kWorthATrim && released < waiting_ / kQuietPart) {
    options_.trim();
    waiting_ = 0;
  }
  Later();
}

}  // namespace ballast::server
