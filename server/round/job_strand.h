// JobStrand: the strand of one job as the parts of its engine use it. Its tasks run while the
// engine lives, never after its end. Comes from: RoundDriver and its parts. Goes to: Strand.
// Thread safety: Bind before all else; the rest from any thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "common/threads/executor.h"

namespace ballast::server {

class JobStrand {
 public:
  using Task = std::function<void()>;
  using Done = std::function<void(absl::Status)>;

  explicit JobStrand(Executor* executor) : strand_(executor) {}

  // `engine` owns this strand and all objects that its tasks touch.
  void Bind(std::weak_ptr<const void> engine) { engine_ = std::move(engine); }

  // Keeps the engine alive until `task` has run.
  void Post(Task task) {
    strand_.Post([engine = KeepAlive(), task = std::move(task)] { task(); });
  }
  // As Post, but on the calling thread when the job has nothing else to do. For the short tasks of
  // pollers and workers, which cost less than waking another thread.
  void Dispatch(Task task) {
    strand_.Dispatch([engine = KeepAlive(), task = std::move(task)] { task(); });
  }
  // Runs `task` after `delay` if the engine still lives then.
  void PostAfter(std::chrono::nanoseconds delay, Task task) {
    strand_.PostAfter(delay, [engine = engine_, task = std::move(task)] {
      if (const auto alive = engine.lock()) task();
    });
  }

  // For other threads, mainly the log's: a callback that runs `task` on the strand if the engine
  // still lives. It does not keep the engine alive, because the engine's end waits for those
  // threads.
  Done Callback(std::function<void(const absl::Status&)> task) const {
    return
        [engine = engine_, post = strand_.Poster(), task = std::move(task)](absl::Status status) {
          post([engine, task, status] {
            if (const auto alive = engine.lock()) task(status);
          });
        };
  }
  // The same for a final report, due even after the engine's end: its task learns whether the
  // engine is alive. False after the executor has shut down: the task does not run.
  std::function<bool(std::function<void(bool alive)>)> Ending() const {
    return [engine = engine_, post = strand_.Poster()](std::function<void(bool alive)> task) {
      return post([engine, task = std::move(task)] {
        const auto alive = engine.lock();
        task(alive != nullptr);
      });
    };
  }

  // Drops waiting and future tasks, as Strand::Close.
  void Close() { strand_.Close(); }

  // Keeps the engine, and so all of its parts, alive while a copy lives.
  std::shared_ptr<const void> KeepAlive() const { return engine_.lock(); }

  void AssertCurrent() const { strand_.AssertCurrent(); }

 private:
  Strand strand_;
  std::weak_ptr<const void> engine_;
};

}  // namespace ballast::server
