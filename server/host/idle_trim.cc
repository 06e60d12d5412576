#include "server/host/idle_trim.h"

#include <algorithm>
#include <utility>

namespace ballast::server {
namespace {

// Less than this is not worth the page faults that follow.
constexpr uint64_t kWorthATrim = 8 << 20;
// An interval is quiet if the process grew by less than this part of its total growth.
constexpr uint64_t kQuietPart = 32;
constexpr int kPauseMax = 16;

}  // namespace

std::shared_ptr<IdleTrim> IdleTrim::Start(IdleTrimOptions options, Executor* executor) {
  const std::shared_ptr<IdleTrim> trim(new IdleTrim(std::move(options), executor));
  trim->Later();
  return trim;
}

IdleTrim::IdleTrim(IdleTrimOptions options, Executor* executor)
    : options_(std::move(options)),
      executor_(executor),
      last_(options_.resident()),
      least_(last_) {}

void IdleTrim::Later() {
  executor_->PostAfter(options_.interval, [weak = weak_from_this()] {
    if (const auto trim = weak.lock()) trim->Look();
  });
}

void IdleTrim::Look() {
  const uint64_t now = options_.resident();
  const uint64_t lately = now - std::min(now, last_);
  last_ = now;
  least_ = std::min(least_, now);
  ++waited_;
  const uint64_t grown = now - least_;
  if (grown >= kWorthATrim && lately < grown / kQuietPart && waited_ >= pause_) Trim();
  Later();
}

void IdleTrim::Trim() {
  options_.trim();
  last_ = least_ = options_.resident();  // Memory in use has stayed.
  pause_ = waited_ < 4 * pause_ ? std::min(2 * pause_, kPauseMax) : 1;
  waited_ = 0;
}

}  // namespace ballast::server
