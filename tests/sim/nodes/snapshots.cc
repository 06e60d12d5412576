#include "tests/sim/nodes/snapshots.h"

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ballast::sim {
namespace {

using server::SnapshotCall;

constexpr int kTries = 3;
constexpr Tick kRetryDelay = kSecond;
// Elsewhere a day, and the end of a peer's process ends the call.
constexpr Tick kSnapshotCallTimeout = 10 * kSecond;

}  // namespace

SimSnapshots::SimSnapshots(const Context& context, SimServer* server)
    : context_(context),
      server_(server),
      life_(context.world->Life(context.network->ServerNode(0))),
      store_(server->shelf_disk(), kShelfRoot, context.plan->servers.front(), kShelfOwner) {}

void SimSnapshots::After(Tick delay, std::function<void()> action) {
  context_.world->clock(node())->AfterInLife(delay, life_, EventKind::kTimer, std::move(action));
}

void SimSnapshots::OnDisk(std::function<void()> task) {
  const Tick full = context_.swarm->snapshots.pace;
  context_.world->AfterInLife(random().Between(full / 4, full), node(), life_, EventKind::kImages,
                              std::move(task));
}

void SimSnapshots::Start() {
  context_.shelf->OnTaking(false);
  if (context_.swarm->snapshots.most == 0) return;
  OnDisk([this] { Clear(); });
  DoNext();
}

void SimSnapshots::Clear() {
  cleared_ = store_.Clear().ok();
  if (!cleared_ && Alive()) After(kRetryDelay, [this] { OnDisk([this] { Clear(); }); });
}

void SimSnapshots::DoNext() {
  After(random().Between(1, 2 * context_.swarm->snapshots.mean_gap), [this] {
    SnapshotShelf* const shelf = context_.shelf;
    if (shelf->no_more() || shelf->begun() == context_.swarm->snapshots.most) return;
    // Before there is a state most of them would be in vain.
    if (!ready() || server_->process() == nullptr) return DoNext();
    const bool early = server_->process()->fsm().round() == 1 && !random().OneIn(8);
    if (early) return DoNext();
    if (!shelf->taken().empty() && random().OneIn(3)) {
      const auto which = static_cast<ptrdiff_t>(random().Below(shelf->taken().size()));
      Remove(*std::next(shelf->taken().begin(), which));
    } else {
      if (context_.swarm->snapshots.write_errors && random().OneIn(3)) {
        shelf->disk()->Fail(MemoryDisk::Operation::kWrite, random().Spread(1, 16), EIO);
      }
      Take(absl::StrCat("s", shelf->NextNumber()), [](const absl::Status&) {});
    }
    DoNext();
  });
}

// --- Taking one ---------------------------------------------------------------------------------

void SimSnapshots::Take(const std::string& name, const Done& done) {
  busy_ = true;
  Try(name, kTries, [this, done](const absl::Status& status) {
    busy_ = false;
    done(status);
  });
}

void SimSnapshots::Try(const std::string& name, int tries, const Done& done) {
  const auto taking = std::make_shared<Taking>();
  taking->id = std::max<uint64_t>(1, random().Next());
  taking->name = name;
  taking->tries = tries - 1;
  taking->before = std::make_shared<server::CapturedRound>();
  taking->done = done;
  OnDisk([this, taking] {
    const absl::Status begun =
        store_.Begin(taking->id, context_.plan->spec.name, taking->name, /*bytes=*/0);
    if (!Alive()) return;
    if (!begun.ok()) return taking->done(begun);
    context_.shelf->OnTaking(true);
    Everywhere(taking, Step::kHold, [this, taking](const absl::Status& held) {
      if (!held.ok()) return GiveUp(taking, held);
      Everywhere(taking, Step::kCapture, [this, taking](const absl::Status& captured) {
        captured.ok() ? Commit(taking) : GiveUp(taking, captured);
      });
    });
  });
}

// `done` runs with the first error when all servers have answered.
void SimSnapshots::Everywhere(const TakingRef& taking, Step step,
                              const std::function<void(absl::Status)>& done) {
  struct Gathered {
    size_t left = 0;
    absl::Status status;
  };
  const auto gathered = std::make_shared<Gathered>();
  gathered->left = context_.plan->servers.size();
  for (uint32_t index = 0; index < context_.plan->servers.size(); ++index) {
    const bool own = context_.mutant == Mutant::kSnapshotOfTwoRounds && step == Step::kCapture;
    const uint64_t round = own ? taking->rounds[index] : taking->round;
    const SnapshotCall call{step, *context_.job, taking->id, round};
    const auto add = [=](const absl::StatusOr<uint64_t>& answer) {
      if (step == Step::kHold && answer.ok()) {
        taking->round = std::max(taking->round, *answer);
        taking->rounds[index] = *answer;
      }
      gathered->status.Update(answer.status());
      if (--gathered->left == 0) done(gathered->status);
    };
    if (index == 0) {
      server_->OnSnapshot(call, step == Step::kCapture ? taking->before : nullptr, add);
    } else {
      Ask(index, call, add);
    }
  }
}

void SimSnapshots::Ask(uint32_t index, const SnapshotCall& call,
                       const std::function<void(absl::StatusOr<uint64_t>)>& done) {
  // Nobody repeats such a call.
  const auto asked = std::make_shared<bool>(false);
  context_.network->Ask(
      node(), index,
      [call, done, asked](StreamServer* server, const auto& answer) {
        if (std::exchange(*asked, true)) return;
        server->OnSnapshot(call, nullptr, [done, answer](const absl::StatusOr<uint64_t>& round) {
          answer([done, round] { done(round); });
        });
      },
      [done](const absl::Status& status) { done(status); }, kSnapshotCallTimeout);
}

void SimSnapshots::Commit(const TakingRef& taking) {
  OnDisk([this, taking] {
    server::SnapshotManifest manifest;
    manifest.id = taking->id;
    manifest.name = taking->name;
    manifest.job = context_.plan->spec.name;
    manifest.round = taking->round;
    manifest.prepared = taking->before->prepared;
    manifest.decision = taking->before->decision;
    context_.shelf->OnDoubtful(taking->name);
    const absl::Status committed = store_.Commit(manifest);
    if (!Alive()) return;
    if (!committed.ok()) return GiveUp(taking, committed);
    context_.shelf->OnTaken(taking->name);
    context_.shelf->OnTaking(false);
    if (context_.world->tracing()) {
      context_.world->Trace(
          node(), absl::StrCat("snapshot ", taking->name, " taken of round ", taking->round));
    }
    taking->done(absl::OkStatus());
  });
}

// Every server lets go, and nothing is left on disk; then it may be tried again.
void SimSnapshots::GiveUp(const TakingRef& taking, const absl::Status& why) {
  context_.world->Met(Cover::kSnapshotGivenUp);
  if (context_.world->tracing()) {
    context_.world->Trace(node(), absl::StrCat("snapshot given up: ", why.ToString()));
  }
  Everywhere(taking, Step::kRelease, [this, taking, why](const absl::Status&) {
    OnDisk([this, taking, why] {
      const absl::Status removed = store_.Remove(taking->id);
      if (!Alive()) return;
      if (removed.ok()) context_.shelf->OnGone(taking->name);
      context_.shelf->OnTaking(false);
      if (!absl::IsAborted(why) || taking->tries == 0) return taking->done(why);
      After(kRetryDelay, [this, taking] { Try(taking->name, taking->tries, taking->done); });
    });
  });
}

// --- Removing one -------------------------------------------------------------------------------

void SimSnapshots::Remove(const std::string& name) {
  busy_ = true;
  OnDisk([this, name] {
    const auto found = store_.Find(context_.plan->spec.name, name);
    if (!Alive()) return;
    if (!found.ok()) {
      return context_.world->Red(absl::StrCat("snapshot ", name, ": ", found.status().ToString()));
    }
    context_.shelf->OnDoubtful(name);
    const absl::Status removed = store_.Remove(found->id);
    if (!Alive()) return;
    context_.world->Met(Cover::kSnapshotRemoved);
    if (removed.ok()) context_.shelf->OnGone(name);
    busy_ = false;
  });
}

}  // namespace ballast::sim
