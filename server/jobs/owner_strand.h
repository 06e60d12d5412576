// OwnerStrand: one strand for all parts of one object. A posted task keeps that object alive until
// it has run, so a part may use itself and its siblings in the task.
// Comes from: Directory. Goes to: its parts. Thread safety: thread-safe after SetOwner.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include "common/threads/executor.h"

namespace ballast::server {

class OwnerStrand {
 public:
  // `executor` outlives the strand.
  explicit OwnerStrand(Executor* executor) : strand_(executor) {}

  // The object that holds the strand and the parts; called once, before anything else.
  void SetOwner(std::weak_ptr<void> owner) { owner_ = std::move(owner); }
  const std::weak_ptr<void>& owner() const { return owner_; }

  // Drops `task` when the owner is gone.
  void Post(std::function<void()> task) { PostFor(owner_.lock(), std::move(task)); }
  // As Post, for a caller that holds the owner already.
  void PostFor(std::shared_ptr<void> owner, std::function<void()> task) {
    if (owner == nullptr) return;
    strand_.Post([owner = std::move(owner), task = std::move(task)] { task(); });
  }
  // Runs `task` at once in a task of this strand; from elsewhere as Post.
  template <typename Task>
  void Run(Task task) {
    strand_.IsCurrent() ? task() : Post(std::move(task));
  }
  void PostAfter(std::chrono::nanoseconds delay, std::function<void()> task) {
    if (auto owner = owner_.lock(); owner != nullptr) {
      strand_.PostAfter(delay, [owner = std::move(owner), task = std::move(task)] { task(); });
    }
  }

  // Drops waiting and future tasks, as Strand::Close.
  void Close() { strand_.Close(); }

  // `then` for a caller on any thread: its arguments are copied, and it runs on the strand. The
  // owner lives until then.
  template <typename Then>
  auto Bind(Then then) {
    return [this, owner = owner_.lock(), then = std::move(then)](const auto&... results) {
      PostFor(owner, [then, results...] { then(results...); });
    };
  }
  // As Bind, for a caller that the owner holds: the call is dropped when the owner is gone.
  template <typename Then>
  auto BindWeakly(Then then) {
    return [this, weak = owner_, then = std::move(then)](const auto&... results) {
      if (const auto owner = weak.lock(); owner != nullptr) {
        PostFor(owner, [then, results...] { then(results...); });
      }
    };
  }

 private:
  Strand strand_;
  std::weak_ptr<void> owner_;
};

}  // namespace ballast::server
