// Directory: what takes long and is ordered by the home: who carries it out, what ends it early,
// and what becomes of a half-made job when the home is gone.
//
// A server that stops, or that loses the home, ends what it does for it between two extents. The
// home writes down that others make a job before it tells them (JobStore::MarkOrdered), so that it
// can have them drop it after a restart: a job is there once the home has a record of it.
// Thread safety: on the strand.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/names.h"
#include "common/base/status_macros.h"
#include "server/cluster/directory.h"

namespace ballast::server {
namespace {

constexpr std::chrono::seconds kDropRetry(1);
constexpr std::chrono::milliseconds kOrderRetry(100);
constexpr std::chrono::seconds kStartingWait(30);

}  // namespace

absl::Status Directory::ShuttingDown() const {
  return ReasonedError(absl::StatusCode::kUnavailable, Reason::kShuttingDown,
                       absl::StrCat("server ", config_.self, " is shutting down"),
                       {.server = static_cast<int>(config_.self)});
}

absl::Status Directory::HomeLost(const std::string& why) const {
  const uint32_t home = config_.servers.front().id;
  return ReasonedError(absl::StatusCode::kUnavailable, Reason::kServerLost,
                       absl::StrCat("server ", config_.self, " has lost the home, server ", home,
                                    " (", why, "); call again when it is back"),
                       {.server = static_cast<int>(home)});
}

absl::Status Directory::SaidBy(uint32_t server, const std::string& what,
                               const absl::Status& status) {
  const bool lost = absl::IsUnavailable(status) || absl::IsCancelled(status);
  if (!lost || ReasonOf(status) != Reason::kUnspecified) return status;
  return ReasonedError(
      absl::StatusCode::kUnavailable, Reason::kServerLost,
      absl::StrCat("server ", server, " was lost while it ", what, " (", status.message(),
                   "); nothing is left of it; call again when that server runs"),
      {.server = static_cast<int>(server)});
}

// --- Carrying out -------------------------------------------------------------------------------

void Directory::CarryOut(Executor* thread, const OrderRef& order, const Carry& carry) {
  for (const OrderRef& other : orders_) {
    if (order->job == 0 || other->job == 0 || other->name != order->name) continue;
    other->halt->Call(absl::AbortedError(
        absl::StrCat("job \"", order->name, "\" is being made anew, by a later order")));
    other->then.push_back([=, this] { CarryOut(thread, order, carry); });
    return;
  }
  if (shutting_down_) order->halt->Call(ShuttingDown());
  ++under_way_;
  orders_.push_back(order);
  RunOn(thread, [this, order, carry]() -> std::function<void()> {
    return [this, order, then = carry(*order->halt)] {
      EndOrder(order);
      then();
      EndUnderWay();
    };
  });
}

void Directory::EndOrder(const OrderRef& order) {
  std::erase(orders_, order);
  for (const auto& then : std::exchange(order->then, {})) then();
}

void Directory::HaltOrders(const absl::Status& why) {
  for (const OrderRef& order : orders_) order->halt->Call(why);
}

bool Directory::HaltMaking(uint64_t job, const std::function<void()>& then) {
  for (const OrderRef& order : orders_) {
    if (order->job != job) continue;
    order->halt->Call(
        absl::AbortedError(absl::StrCat("job ", JobIdText(job), " was dropped by its home")));
    order->then.push_back(then);
    return true;
  }
  return false;
}

// --- At the home --------------------------------------------------------------------------------

std::shared_ptr<Gather> Directory::GatherPeers(size_t count,
                                               std::function<void(absl::Status)> done) {
  auto gather = std::make_shared<Gather>(count, std::move(done));
  std::erase_if(waits_for_peers_, [](const auto& one) { return one.expired(); });
  waits_for_peers_.push_back(gather);
  return gather;
}

void Directory::Tell(uint32_t server, const AtServer& order,
                     const std::function<void(absl::Status)>& done) {
  TryTelling(server, order, deps_.clock->Now() + kStartingWait, done);
}

void Directory::TryTelling(uint32_t server, const AtServer& order, std::chrono::nanoseconds until,
                           const std::function<void(absl::Status)>& done) {
  const auto self = shared_from_this();
  order(server, [=, this](const absl::Status& status) {
    const bool mistaken = ReasonOf(status) == Reason::kServerLost &&
                          FieldsOf(status).server == static_cast<int>(config_.self);
    const bool too_early = IsStillStarting(status) && deps_.clock->Now() < until;
    if (!mistaken && !too_early) return done(status);
    BALLAST_LOG_EVERY(10, INFO, LogField("server", server)) << "waits to order again: " << status;
    Post([=, this] {
      if (shutting_down_) return done(ShuttingDown());
      strand_.PostAfter(kOrderRetry, [=, this] { self->TryTelling(server, order, until, done); });
    });
  });
}

absl::Status Directory::MarkOrdered(const JobPlan& plan) {
  if (plan.servers.size() == 1) return absl::OkStatus();
  return store_->MarkOrdered(plan.job);
}

void Directory::DropOrdered(uint64_t job) {
  if (shutting_down_) return;
  const auto self = shared_from_this();
  const auto end = [=, this](const absl::Status& status) {
    if (!status.ok()) {
      strand_.PostAfter(kDropRetry, [this, self, job] { DropOrdered(job); });
      return;
    }
    OnDisk([this, job]() -> std::function<void()> {
      const absl::Status cleared = store_->ClearOrdered(job);
      if (!cleared.ok()) BALLAST_LOG(WARN) << cleared;
      return [] {};
    });
  };
  const auto gather = std::make_shared<Gather>(
      config_.servers.size() - 1,
      [self, end](const absl::Status& status) { self->Post([end, status] { end(status); }); });
  for (const ServerAddress& server : config_.servers) {
    if (server.id == config_.self) continue;
    peers_->DropJob(server.id, job, [gather](const absl::Status& status) { gather->Add(status); });
  }
}

// --- The end ------------------------------------------------------------------------------------

void Directory::EndUnderWay() {
  if (--under_way_ == 0 && when_idle_) std::exchange(when_idle_, nullptr)();
}

void Directory::DoShutdown(const std::function<void()>& done) {
  shutting_down_ = true;
  const absl::Status status = ShuttingDown();
  for (auto& [name, pending] : pending_) FailPending(&pending, status);
  for (const auto& engine : Engines()) engine->Fail(status);
  HaltOrders(status);
  for (auto& [job, hold] : resting_holds_) *hold.cancelled = true;
  for (const auto& one : std::exchange(waits_for_peers_, {})) {
    if (const auto gather = one.lock(); gather != nullptr) gather->GiveUp(status);
  }
  when_idle_ = done;
  if (under_way_ == 0) std::exchange(when_idle_, nullptr)();
}

}  // namespace ballast::server
