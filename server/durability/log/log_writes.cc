#include "server/durability/log/log_writes.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"

namespace ballast::server {

absl::StatusOr<std::unique_ptr<LogWrites>> LogWrites::Create() {
  BALLAST_ASSIGN_OR_RETURN(Arena arena, Arena::Create(2 * kUnderWayMax * kPageBytes));
  return std::unique_ptr<LogWrites>(new LogWrites(std::move(arena)));
}

LogWrites::LogWrites(Arena arena) : arena_(std::move(arena)), holders_(kUnderWayMax, 0) {}

LogWrites::~LogWrites() { Wait().IgnoreError(); }

LogWrites::Pages::~Pages() { of_->Drop(index_); }

LogWrites::Pages LogWrites::Take() {
  MutexLock lock(&mu_);
  for (;;) {
    const auto free = std::find(holders_.begin(), holders_.end(), 0);
    if (free != holders_.end()) {
      *free = 1;
      return {this, static_cast<size_t>(free - holders_.begin())};
    }
    ended_.Wait(&mu_);
  }
}

void LogWrites::Begin(const Pages& pages, File* file, uint64_t offset,
                      const std::vector<ConstBytes>& parts, std::shared_ptr<const void> owner) {
  {
    MutexLock lock(&mu_);
    ++holders_[pages.index_];
    ++under_way_;
  }
  const auto end = [this, index = pages.index_, owner = std::move(owner)](absl::Status status) {
    MutexLock lock(&mu_);
    status_.Update(status);
    --under_way_;
    --holders_[index];
    ended_.NotifyAll();  // Under the lock: the waiting one may own all of this.
  };
  file->StartWrite(offset, parts, end);
}

void LogWrites::Drop(size_t index) {
  MutexLock lock(&mu_);
  --holders_[index];
  ended_.NotifyAll();
}

absl::Status LogWrites::Wait() {
  MutexLock lock(&mu_);
  while (under_way_ != 0) ended_.Wait(&mu_);
  return status_;
}

absl::Status LogWrites::status() const {
  MutexLock lock(&mu_);
  return status_;
}

}  // namespace ballast::server
