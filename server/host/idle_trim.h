// IdleTrim: returns memory cached by malloc to the kernel once a server is quiet again. TuneMalloc
// lets it keep 2 GB, which is right for frames that come and go, and wrong for what one manifest a
// day or a flood of broken calls has left. It looks at the memory of the process, so that nothing
// has to say that it left some. Comes from: server.cc. Goes to: malloc. Thread safety: Start and
// the destructor from one thread; the rest runs on the executor.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "common/base/executor.h"

namespace ballast::server {

struct IdleTrimOptions {
  std::chrono::nanoseconds interval = std::chrono::seconds(2);
  // Bytes of memory that the process has now.
  std::function<uint64_t()> resident;
  // Gives free memory back: MallocArenas::GiveBack.
  std::function<void()> trim;
};

class IdleTrim : public std::enable_shared_from_this<IdleTrim> {
 public:
  // Looks every interval, and trims when the process has grown by 8 MiB or more over the least that
  // it had since the last trim, and by less than a 32nd of that in this interval. Memory that comes
  // back soon after, as the buffers of rounds do, is left alone for longer and longer, up to 16
  // intervals. `executor` outlives the last look, which it drops when it shuts down.
  static std::shared_ptr<IdleTrim> Start(IdleTrimOptions options, Executor* executor);

 private:
  IdleTrim(IdleTrimOptions options, Executor* executor);
  void Later();
  void Look();
  void Trim();

  const IdleTrimOptions options_;
  Executor* const executor_;
  // Used on the executor.
  uint64_t last_;   // bytes at the last look
  uint64_t least_;  // the least since the last trim
  int waited_ = 0;  // intervals since then
  int pause_ = 1;   // intervals until the next trim
};

}  // namespace ballast::server
