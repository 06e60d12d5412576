#include "server/jobs/background_tasks.h"

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "common/text/names.h"
#include "common/threads/priority.h"
#include "server/jobs/peer_calls.h"

namespace ballast::server {
namespace {

constexpr std::chrono::milliseconds kOrderRetry(100);
constexpr std::chrono::seconds kStartingWait(30);

}  // namespace

BackgroundTasks::BackgroundTasks(const Parts& parts)
    : self_(parts.self),
      strand_(parts.strand),
      clock_(parts.clock),
      snapshots_(parts.executors->MakeExecutor("snapshots", 1, kBesideRounds)),
      exchange_(parts.executors->MakeExecutor("exchange", 1, kBesideRounds)) {}

// --- On the threads for the disk ----------------------------------------------------------------

void BackgroundTasks::RunOn(Thread thread, std::function<std::function<void()>()> task) {
  Executor* const executor = (thread == Thread::kSnapshots ? snapshots_ : exchange_).get();
  // The thread must not be the last to let go of the owner, which waits for the thread.
  executor->Post([strand = strand_, weak = strand_->owner(), task = std::move(task)]() mutable {
    std::function<void()> then = task();
    task = nullptr;
    if (auto owner = weak.lock()) strand->PostFor(std::move(owner), std::move(then));
  });
}

void BackgroundTasks::RunAndLog(Thread thread, std::function<absl::Status()> task) {
  Run(thread, std::move(task), [](const absl::Status& status) {
    if (!status.ok()) BALLAST_LOG(WARN) << status;
  });
}

void BackgroundTasks::Begin(Thread thread, const OrderRef& order) {
  for (const OrderRef& other : orders_) {
    if (order->making.job == 0 || other->making.job == 0) continue;
    if (other->making.name != order->making.name) continue;
    other->cancel.Cancel(absl::AbortedError(absl::StrCat(
        "job \"", order->making.name.name, "\" is being made anew, by a later order")));
    other->then.push_back([this, thread, order] { Begin(thread, order); });
    return;
  }
  if (self_->stopping()) order->cancel.Cancel(self_->ShuttingDown());
  ++under_way_;
  orders_.push_back(order);
  RunOn(thread, [this, order]() -> std::function<void()> {
    return [this, order, then = order->run(order->cancel)] {
      EndOrder(order);
      then();
      EndUnderWay();
    };
  });
}

void BackgroundTasks::EndOrder(const OrderRef& order) {
  std::erase(orders_, order);
  for (const auto& then : std::exchange(order->then, {})) then();
}

void BackgroundTasks::CancelAll(const absl::Status& why) {
  for (const OrderRef& order : orders_) order->cancel.Cancel(why);
}

bool BackgroundTasks::CancelMaking(uint64_t job, const std::function<void()>& then) {
  for (const OrderRef& order : orders_) {
    if (order->making.job != job) continue;
    order->cancel.Cancel(
        absl::AbortedError(absl::StrCat("job ", JobIdText(job), " was dropped by its home")));
    order->then.push_back(then);
    return true;
  }
  return false;
}

// --- At other servers ---------------------------------------------------------------------------

std::shared_ptr<WhenAll> BackgroundTasks::WhenAllPeers(size_t count,
                                                       std::function<void(absl::Status)> done) {
  auto answers = std::make_shared<WhenAll>(count, std::move(done));
  std::erase_if(waits_for_peers_, [](const auto& one) { return one.expired(); });
  waits_for_peers_.push_back(answers);
  return answers;
}

void BackgroundTasks::Tell(uint32_t server, const AtServer& order,
                           const std::function<void(absl::Status)>& done) {
  TryTelling(server, order, clock_->Now() + kStartingWait, done);
}

void BackgroundTasks::TryTelling(uint32_t server, const AtServer& order,
                                 std::chrono::nanoseconds until,
                                 const std::function<void(absl::Status)>& done) {
  order(server, [=, this, owner = strand_->owner().lock()](const absl::Status& status) {
    // It took this for an order of this server's last process, whose end it had only just noticed.
    const bool mistaken = ReasonOf(status) == Reason::kServerLost &&
                          FieldsOf(status).server == static_cast<int>(self_->id());
    const bool too_early = IsStillStarting(status) && clock_->Now() < until;
    if (!mistaken && !too_early) return done(status);
    BALLAST_LOG_EVERY(10, INFO, LogField("server", server)) << "waits to order again: " << status;
    strand_->Post([=, this] {
      if (self_->stopping()) return done(self_->ShuttingDown());
      strand_->PostAfter(kOrderRetry, [=, this] { TryTelling(server, order, until, done); });
    });
  });
}

absl::Status BackgroundTasks::SaidBy(uint32_t server, const std::string& what,
                                     const absl::Status& status) {
  const bool lost = absl::IsUnavailable(status) || absl::IsCancelled(status);
  if (!lost || ReasonOf(status) != Reason::kUnspecified) return status;
  return ReasonedError(
      absl::StatusCode::kUnavailable, Reason::kServerLost,
      absl::StrCat("server ", server, " was lost while it ", what, " (", status.message(),
                   "); nothing is left of it; call again when that server runs"),
      {.server = static_cast<int>(server)});
}

// --- The end ------------------------------------------------------------------------------------

void BackgroundTasks::EndUnderWay() {
  if (--under_way_ == 0 && when_idle_) std::exchange(when_idle_, nullptr)();
}

void BackgroundTasks::Stop(const absl::Status& why, std::function<void()> done) {
  CancelAll(why);
  for (const auto& one : std::exchange(waits_for_peers_, {})) {
    if (const auto answers = one.lock(); answers != nullptr) answers->GiveUp(why);
  }
  when_idle_ = std::move(done);
  if (under_way_ == 0) std::exchange(when_idle_, nullptr)();
}

void BackgroundTasks::Join() {
  snapshots_->Shutdown();
  exchange_->Shutdown();
}

}  // namespace ballast::server
