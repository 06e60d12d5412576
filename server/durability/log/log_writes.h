// LogWrites: the gradient log's writes under way. While the disk takes some records, the next one
// is being checksummed, so that the disk is never idle between them. Comes from: GradientLog. Goes
// to: common/io files. Thread safety: Begin and Wait on the log's thread; writes end on any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/sync.h"
#include "common/io/arena.h"
#include "common/io/file.h"

namespace ballast::server {

class LogWrites {
 public:
  static absl::StatusOr<std::unique_ptr<LogWrites>> Create();
  // Waits for all writes under way.
  ~LogWrites();

  // Two pages of the log's own for one record: its header, and the end of its payload. Free for the
  // next record when this is gone and, after Begin, the write has ended.
  class Pages {
   public:
    Pages(LogWrites* of, size_t index) : of_(of), index_(index) {}
    ~Pages();
    Pages(const Pages&) = delete;
    Pages& operator=(const Pages&) = delete;

    char* header() const { return of_->arena_.data() + 2 * index_ * kPageBytes; }
    char* last() const { return header() + kPageBytes; }

   private:
    friend class LogWrites;
    LogWrites* const of_;
    const size_t index_;
  };
  // Waits while all pages are in use.
  Pages Take();

  // Begins to write `parts`, the record whose `pages` these are, at `offset` of `file`. `owner`
  // keeps the parts outside `pages` alive, unchanged, until they are written.
  void Begin(const Pages& pages, File* file, uint64_t offset, const std::vector<ConstBytes>& parts,
             std::shared_ptr<const void> owner);

  // Returns when nothing is under way; the first error of all writes so far.
  absl::Status Wait();
  // The first error so far.
  absl::Status status() const;

 private:
  // As many as keep a disk busy; more would only delay a vote.
  static constexpr size_t kUnderWayMax = 4;

  explicit LogWrites(Arena arena);
  // One of the pages' two holders, the record being made and the write, releases them.
  void Drop(size_t index);

  const Arena arena_;
  mutable Mutex mu_;
  CondVar ended_;
  std::vector<int> holders_ ABSL_GUARDED_BY(mu_);  // by index
  size_t under_way_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ballast::server
