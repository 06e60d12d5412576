// gRPC operations that outlive their owner: abandoned streams, calls and alarms. They stay here
// until their last event, because gRPC writes to their memory until then.
// Comes from: the handles of GrpcTransport. Goes to: nothing; it ends here.
// Thread safety: under the transport's lock.
#pragma once

#include <memory>
#include <utility>
#include <vector>

namespace ballast::client {

// A state machine over a completion queue that may outlive its user.
class QueueOperation {
 public:
  virtual ~QueueOperation() = default;
  // The owner has gone: no callback from now on, and the operation ends soon.
  virtual void Abandon() = 0;
  // No event will follow: the operation may be destroyed.
  virtual bool ended() const = 0;
};

class OrphanedOperations {
 public:
  using Operations = std::vector<std::unique_ptr<QueueOperation>>;

  void Take(std::unique_ptr<QueueOperation> operation) {
    operation->Abandon();
    operations_.push_back(std::move(operation));
  }

  // The ended ones, for the caller to destroy without the lock.
  Operations TakeEnded();

  bool empty() const { return operations_.empty(); }

 private:
  Operations operations_;
};

}  // namespace ballast::client
