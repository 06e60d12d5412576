// BackgroundTasks: long tasks, which must not hold up the directory's strand: tasks on the two
// threads for the disk, and orders to other servers. An order ends early when this server stops,
// when it loses the home, or when a later order makes a job of the same name.
// Comes from: snapshots, restores, exports, imports. Goes to: JobStore, SnapshotStore, Exports on
// these threads, and the peers.
// Thread safety: owned by the directory's strand, apart from works(), which is thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/text/qualified_name.h"
#include "common/threads/executor.h"
#include "common/threads/executor_source.h"
#include "server/jobs/cancel_token.h"
#include "server/jobs/owner_strand.h"
#include "server/jobs/this_server.h"
#include "server/jobs/when_all.h"
#include "server/jobs/works.h"

namespace ballast::server {

class BackgroundTasks {
 public:
  // One thread each: an export must not delay a snapshot.
  enum class Thread : uint8_t { kSnapshots, kExchange };
  // An order to one server, which calls `done` on any thread.
  using AtServer = std::function<void(uint32_t server, std::function<void(absl::Status)> done)>;
  // The job that a task makes at this server; 0 and empty: none.
  struct Making {
    uint64_t job = 0;
    QualifiedName name;
  };

  // All outlive the object.
  struct Parts {
    const ThisServer* self = nullptr;
    OwnerStrand* strand = nullptr;
    const Clock* clock = nullptr;
    ExecutorSource* executors = nullptr;  // makes the threads
  };

  explicit BackgroundTasks(const Parts& parts);

  // Runs `task` on the thread, where it may block on the disk, and `then` on the strand with its
  // result. The owner of the strand may be destroyed meanwhile: then `then` does not run.
  template <typename Task, typename Then>
  void Run(Thread thread, Task task, Then then) {
    RunOn(thread, [task = std::move(task), then = std::move(then)]() mutable {
      return [then, result = task()] { then(result); };
    });
  }
  // As Run, for a task whose error is only logged.
  void RunAndLog(Thread thread, std::function<absl::Status()> task);

  // As Run for orders of the home; Stop waits for its end. `carry` asks its CancelToken between two
  // extents. A task that makes a job halts an earlier one for a job of the same name, and begins
  // after its end.
  template <typename Carry, typename Then>
  void CarryOut(Thread thread, Making making, Carry carry, Then then) {
    const auto order = std::make_shared<Order>();
    order->making = std::move(making);
    order->run = [carry = std::move(carry), then = std::move(then)](const CancelToken& cancel) {
      return [then, result = carry(cancel)] { then(result); };
    };
    Begin(thread, order);
  }
  // Halts all that CarryOut has begun.
  void CancelAll(const absl::Status& why);
  // Whether the job is being made here. If so, halts the task; `then` runs after its end.
  bool CancelMaking(uint64_t job, const std::function<void()>& then);

  // A WhenAll that Stop gives up.
  std::shared_ptr<WhenAll> WhenAllPeers(size_t count, std::function<void(absl::Status)> done);
  // Gives `order` to another server. Repeats it while that server starts, for half a minute, and
  // when that server took it for an order of this server's last process, whose end it had only just
  // noticed. `done` runs on any thread.
  void Tell(uint32_t server, const AtServer& order, const std::function<void(absl::Status)>& done);
  // `status` of a call to `server`, with the step `what` that the home was waiting for.
  static absl::Status SaidBy(uint32_t server, const std::string& what, const absl::Status& status);

  // `done`, counted as under way: Stop waits until it has run, on the strand.
  template <typename T>
  std::function<void(absl::StatusOr<T>)> UnderWay(std::function<void(absl::StatusOr<T>)> done) {
    ++under_way_;
    return [this, done = std::move(done)](const absl::StatusOr<T>& result) {
      done(result);
      EndUnderWay();
    };
  }

  // Halts orders and gives up waits for peers with `why`; `done` runs when nothing is under way.
  // ThisServer must say that it stops.
  void Stop(const absl::Status& why, std::function<void()> done);
  // Waits for the threads. Their tasks use the owner of the strand, so that calls this before it
  // destroys anything.
  void Join();

  Works* works() { return &works_; }

 private:
  struct Order {
    Making making;
    CancelToken cancel;
    std::function<std::function<void()>(const CancelToken&)> run;
    std::vector<std::function<void()>> then;  // on the strand, when it has ended
  };
  using OrderRef = std::shared_ptr<Order>;

  void RunOn(Thread thread, std::function<std::function<void()>()> task);
  void Begin(Thread thread, const OrderRef& order);
  void EndOrder(const OrderRef& order);
  void EndUnderWay();
  void TryTelling(uint32_t server, const AtServer& order, std::chrono::nanoseconds until,
                  const std::function<void(absl::Status)>& done);

  const ThisServer* const self_;
  OwnerStrand* const strand_;
  const Clock* const clock_;
  std::vector<OrderRef> orders_;
  std::vector<std::weak_ptr<WhenAll>> waits_for_peers_;
  int under_way_ = 0;
  std::function<void()> when_idle_;  // of Stop
  Works works_;
  const std::unique_ptr<Executor> snapshots_;
  const std::unique_ptr<Executor> exchange_;
};

}  // namespace ballast::server
