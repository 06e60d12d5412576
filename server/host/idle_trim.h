// IdleTrim: returns memory cached by malloc to the kernel once a server is quiet again. TuneMalloc
// lets malloc keep 2 GB, which suits short-lived frames, but not the leftovers of one manifest a
// day or a flood of broken calls. It watches the memory of the process, so no code has to report
// leftovers. Comes from: server.cc. Goes to: malloc. Thread safety: Start and the destructor from
// one thread; the rest runs on the executor.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "common/threads/executor.h"

namespace ballast::server {

struct IdleTrimOptions {
  std::chrono::nanoseconds interval = std::chrono::seconds(2);
  // Bytes of memory that the process uses now.
  std::function<uint64_t()> resident;
  // Returns free memory: MallocArenas::GiveBack.
  std::function<void()> trim;
};

class IdleTrim : public std::enable_shared_from_this<IdleTrim> {
 public:
  // Checks every interval, and trims if the process has grown by 8 MiB or more over its minimum
  // since the last trim, and by less than a 32nd of that in this interval. Memory that is soon used
  // again, such as the buffers of rounds, is left alone for longer and longer, up to 16 intervals.
  // `executor` outlives the last check, which it drops when it shuts down.
  static std::shared_ptr<IdleTrim> Start(IdleTrimOptions options, Executor* executor);

 private:
  IdleTrim(IdleTrimOptions options, Executor* executor);
  void Later();
  void Look();
  void Trim();

  const IdleTrimOptions options_;
  Executor* const executor_;
  // Used on the executor.
  uint64_t last_;   // bytes at the last check
  uint64_t least_;  // minimum since the last trim
  int waited_ = 0;  // intervals since then
  int pause_ = 1;   // intervals until the next trim
};

}  // namespace ballast::server
