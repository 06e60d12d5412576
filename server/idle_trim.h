// IdleTrim: gives memory that malloc keeps back to the kernel after large requests. TuneMalloc lets
// it keep 2 GB, which is right for frames that come and go, and wrong for one manifest a day.
// Comes from: server.cc. Goes to: malloc. Thread safety: Start and the destructor from one thread;
// the rest runs on the executor.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "common/base/executor.h"

namespace ballast::server {

struct IdleTrimOptions {
  std::chrono::nanoseconds interval = std::chrono::seconds(2);
  // Bytes that were taken and released again since this was asked last.
  std::function<uint64_t()> released;
  // Gives free memory back: MallocArenas::GiveBack.
  std::function<void()> trim;
};

class IdleTrim : public std::enable_shared_from_this<IdleTrim> {
 public:
  // Looks every interval, and trims when 8 MiB or more were released since the last trim, and less
  // than a 32nd of that in this interval.
  // `executor` outlives the last look, which it drops when it shuts down.
  static std::shared_ptr<IdleTrim> Start(IdleTrimOptions options, Executor* executor);

 private:
  IdleTrim(IdleTrimOptions options, Executor* executor);
  void Later();
  void Look();

  const IdleTrimOptions options_;
  Executor* const executor_;
  uint64_t waiting_ = 0;  // bytes released since the last trim; used on the executor
};

}  // namespace ballast::server
