// The transport over gRPC: a connection per link and per call, one completion queue, and the one
// thread of a client, which handles every event of that queue under the lock.
// Comes from: Client::Attach. Goes to: the servers of a job; the thread of `SetThreadName`.
// Thread safety: as link.h says.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "client/cpp/transport/link.h"
#include "client/cpp/transport/orphaned_operations.h"
#include "common/base/sync.h"
#include "common/threads/thread_executor.h"
#include "grpcpp/completion_queue.h"
#include "proto/convert/channel_factory.h"

namespace ballast::client {

class GrpcTransport final : public Transport {
 public:
  // Starts the thread. `mu` outlives the transport. `time_scale` as JobOptions::time_scale.
  GrpcTransport(Mutex* mu, std::shared_ptr<ChannelFactory> channels, double time_scale);
  // Waits for the end of abandoned operations, and up to two seconds for a running Explain. The
  // caller does not hold the lock.
  ~GrpcTransport() override;

  Time Now() const override { return std::chrono::steady_clock::now(); }
  std::unique_ptr<Link> Open(const LinkTarget& target, LinkHandler* handler) override;
  std::unique_ptr<CallHandle> Start(const CallTarget& target,
                                    const google::protobuf::MessageLite& request,
                                    Answer answer) override;
  std::unique_ptr<CallHandle> Explain(const std::string& address,
                                      std::function<void(std::string)> told) override;
  std::unique_ptr<Timer> MakeTimer(std::function<void()> fire) override;
  uint64_t copied_bytes() const override { return copied_bytes_; }
  bool AwaitEnded(Time deadline) override;

 private:
  bool NextEvent(void** tag, bool* ok);
  void RunQueue();

  Mutex* const mu_;
  const std::shared_ptr<ChannelFactory> channels_;  // of the client, shared by its connections
  const double time_scale_;
  CondVar ended_;
  OrphanedOperations orphaned_;
  uint64_t copied_bytes_ = 0;
  grpc::CompletionQueue queue_;
  std::thread thread_;
  std::unique_ptr<ThreadExecutor> explainer_;  // null until the first question
};

}  // namespace ballast::client
