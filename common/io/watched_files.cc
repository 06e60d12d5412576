// Thread safety: mu_ of CallsUnderWay guards the calls under way, that of SlowCalls the last
// report; files hold nothing of their own.
#include "common/io/watched_files.h"

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/base/sync.h"
#include "common/io/forwarding_files.h"
#include "common/text/units.h"

namespace ballast {
namespace {

using std::chrono::nanoseconds;

// Of all files of one file system.
class SlowCalls {
 public:
  SlowCalls(const Clock* clock, const WatchOptions& options,
            std::function<void(const std::string&)> warn, std::shared_ptr<CallsUnderWay> calls)
      : clock_(clock), options_(options), warn_(std::move(warn)), calls_(std::move(calls)) {}

  uint64_t Begin(const char* what, const std::string& path) { return calls_->Begin(what, path); }

  // The call `number` has ended. `bytes` 0: it has none.
  void Ended(uint64_t number, const char* what, const std::string& path, uint64_t bytes = 0) {
    const nanoseconds took = calls_->End(number);
    if (took <= options_.slow) return;
    const nanoseconds now = clock_->Now();
    uint64_t untold = 0;
    {
      MutexLock lock(&mu_);
      if (told_.has_value() && now - *told_ < options_.quiet) {
        ++untold_;
        return;
      }
      told_ = now;
      untold = std::exchange(untold_, 0);
    }
    warn_(absl::StrCat("the disk is slow: ", what,
                       bytes == 0 ? "" : absl::StrCat(" of ", FormatBytes(bytes)), " of ", path,
                       absl::StrFormat(" took %.1f s", Seconds(took)),
                       untold == 0 ? "" : absl::StrCat(" (and ", untold, " other calls were slow)"),
                       ". Rounds wait for it: look at the device, and at what else uses it"));
  }

  // `run`, which does `what` with `path`, as a call.
  template <typename Run>
  auto Watch(const char* what, const std::string& path, const Run& run, uint64_t bytes = 0) {
    const uint64_t number = Begin(what, path);
    auto result = run();
    Ended(number, what, path, bytes);
    return result;
  }

 private:
  static double Seconds(nanoseconds time) { return static_cast<double>(time.count()) * 1e-9; }

  const Clock* const clock_;
  const WatchOptions options_;
  const std::function<void(const std::string&)> warn_;
  const std::shared_ptr<CallsUnderWay> calls_;
  Mutex mu_;
  std::optional<nanoseconds> told_ ABSL_GUARDED_BY(mu_);
  uint64_t untold_ ABSL_GUARDED_BY(mu_) = 0;
};

uint64_t BytesOf(absl::Span<const ConstBytes> parts) {
  uint64_t bytes = 0;
  for (const ConstBytes& part : parts) bytes += part.bytes;
  return bytes;
}

class WatchedFile : public File {
 public:
  WatchedFile(std::string path, std::unique_ptr<File> below, std::shared_ptr<SlowCalls> calls)
      : path_(std::move(path)), below_(std::move(below)), calls_(std::move(calls)) {}

  absl::StatusOr<size_t> ReadAt(uint64_t offset, size_t bytes, void* to) override {
    const auto read = [&] { return below_->ReadAt(offset, bytes, to); };
    return calls_->Watch("a read", path_, read, bytes);
  }
  absl::Status WriteAt(uint64_t offset, absl::Span<const ConstBytes> parts) override {
    const auto write = [&] { return below_->WriteAt(offset, parts); };
    return calls_->Watch("a write", path_, write, BytesOf(parts));
  }
  void StartRead(uint64_t offset, size_t bytes, void* to,
                 std::function<void(absl::StatusOr<size_t>)> done) override {
    below_->StartRead(offset, bytes, to,
                      [this, bytes, number = calls_->Begin("a read", path_),
                       done = std::move(done)](const absl::StatusOr<size_t>& read) {
                        calls_->Ended(number, "a read", path_, bytes);
                        done(read);
                      });
  }
  void StartWrite(uint64_t offset, absl::Span<const ConstBytes> parts,
                  std::function<void(absl::Status)> done) override {
    below_->StartWrite(offset, parts,
                       [this, bytes = BytesOf(parts), number = calls_->Begin("a write", path_),
                        done = std::move(done)](const absl::Status& status) {
                         calls_->Ended(number, "a write", path_, bytes);
                         done(status);
                       });
  }
  absl::Status Sync() override {
    return calls_->Watch("a flush", path_, [&] { return below_->Sync(); });
  }
  // Takes as long as the file is large.
  absl::Status Allocate(uint64_t bytes) override { return below_->Allocate(bytes); }
  absl::StatusOr<uint64_t> Size() override { return below_->Size(); }
  int direct_descriptor() const override { return below_->direct_descriptor(); }

 private:
  const std::string path_;
  const std::unique_ptr<File> below_;
  const std::shared_ptr<SlowCalls> calls_;
};

class WatchedFiles : public ForwardingFiles {
 public:
  WatchedFiles(FileSystem* below, std::shared_ptr<SlowCalls> calls)
      : ForwardingFiles(below), calls_(std::move(calls)) {}

  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path,
                                             const OpenOptions& options) override {
    const auto open = [&] { return below()->Open(path, options); };
    BALLAST_ASSIGN_OR_RETURN(std::unique_ptr<File> file, calls_->Watch("an open", path, open));
    return std::make_unique<WatchedFile>(path, std::move(file), calls_);
  }
  absl::Status MakeDirectory(const std::string& directory) override {
    return calls_->Watch("a new directory", directory,
                         [&] { return below()->MakeDirectory(directory); });
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return calls_->Watch("a rename", from, [&] { return below()->Rename(from, to); });
  }
  absl::Status Link(const std::string& from, const std::string& to) override {
    return calls_->Watch("a link", to, [&] { return below()->Link(from, to); });
  }
  absl::Status Remove(const std::string& path) override {
    return calls_->Watch("a removal", path, [&] { return below()->Remove(path); });
  }
  absl::Status SyncDirectory(const std::string& directory) override {
    return calls_->Watch("a flush", directory, [&] { return below()->SyncDirectory(directory); });
  }

 private:
  const std::shared_ptr<SlowCalls> calls_;
};

}  // namespace

uint64_t CallsUnderWay::Begin(const char* what, std::string path) {
  const nanoseconds now = clock_->Now();
  MutexLock lock(&mu_);
  begun_.emplace_hint(begun_.end(), next_, Begun{what, std::move(path), now});
  return next_++;
}

nanoseconds CallsUnderWay::End(uint64_t number) {
  const nanoseconds now = clock_->Now();
  MutexLock lock(&mu_);
  const auto it = begun_.find(number);
  BALLAST_CHECK(it != begun_.end());
  const nanoseconds took = now - it->second.at;
  begun_.erase(it);
  return took;
}

std::optional<CallsUnderWay::Call> CallsUnderWay::Oldest(
    const std::function<bool(const std::string& path)>& counts) const {
  const nanoseconds now = clock_->Now();
  MutexLock lock(&mu_);
  for (const auto& [number, call] : begun_) {
    if (counts(call.path)) return Call{call.what, call.path, now - call.at};
  }
  return std::nullopt;
}

std::unique_ptr<FileSystem> WatchedFileSystem(FileSystem* below, const Clock* clock,
                                              const WatchOptions& options,
                                              std::function<void(const std::string&)> warn,
                                              std::shared_ptr<CallsUnderWay> calls) {
  return std::make_unique<WatchedFiles>(
      below, std::make_shared<SlowCalls>(clock, options, std::move(warn), std::move(calls)));
}

}  // namespace ballast
