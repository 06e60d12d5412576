// SimTransport: the network and the clock of one trainer process, for the client's SessionCore.
// Comes from: SimTrainer. Goes to: SessionCore (as Transport), the network, the oracle (everything
// that arrives). Thread safety: one thread; there is no lock.
#pragma once

#include <functional>
#include <memory>

#include "client/cpp/transport/link.h"
#include "tests/sim/nodes/context.h"

namespace ballast::sim {

class SimTransport final : public client::Transport {
 public:
  // Of the process number `process`, which sits on `slot`.
  SimTransport(const Context& context, uint32_t process, uint32_t slot)
      : context_(context), process_(process), slot_(slot) {}

  // This machine's clock, which may be slow or fast.
  client::Time Now() const override;
  std::unique_ptr<client::Link> Open(const client::LinkTarget& target,
                                     client::LinkHandler* handler) override;
  std::unique_ptr<client::CallHandle> Start(const client::CallTarget& target,
                                            const google::protobuf::MessageLite& request,
                                            Answer answer) override;
  std::unique_ptr<client::Timer> MakeTimer(std::function<void()> fire) override;
  uint64_t copied_bytes() const override { return 0; }
  // A link reads lent memory only inside NextMessage's caller.
  bool AwaitEnded(client::Time) override { return true; }

 private:
  const Context context_;
  const uint32_t process_;
  const uint32_t slot_;
};

}  // namespace ballast::sim
