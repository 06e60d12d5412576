// Thread safety: mu_ of SlowCalls guards what was told last; files hold nothing of their own.
#include "common/io/watched_files.h"

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/base/sync.h"
#include "common/base/units.h"
#include "common/io/forwarding_files.h"

namespace ballast {
namespace {

using std::chrono::nanoseconds;

// Of all files of one file system.
class SlowCalls {
 public:
  SlowCalls(const Clock* clock, const WatchOptions& options,
            std::function<void(const std::string&)> warn)
      : clock_(clock), options_(options), warn_(std::move(warn)) {}

  nanoseconds Now() const { return clock_->Now(); }

  // A call that began at `start` has ended. `bytes` 0: a flush.
  void Ended(const char* what, const std::string& path, uint64_t bytes, nanoseconds start) {
    const nanoseconds now = clock_->Now();
    if (now - start <= options_.slow) return;
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
                       absl::StrFormat(" took %.1f s", Seconds(now - start)),
                       untold == 0 ? "" : absl::StrCat(" (and ", untold, " other calls were slow)"),
                       ". Rounds wait for it: look at the device, and at what else uses it"));
  }

 private:
  static double Seconds(nanoseconds time) { return static_cast<double>(time.count()) * 1e-9; }

  const Clock* const clock_;
  const WatchOptions options_;
  const std::function<void(const std::string&)> warn_;
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
    const nanoseconds start = calls_->Now();
    absl::StatusOr<size_t> read = below_->ReadAt(offset, bytes, to);
    calls_->Ended("a read", path_, bytes, start);
    return read;
  }
  absl::Status WriteAt(uint64_t offset, absl::Span<const ConstBytes> parts) override {
    const nanoseconds start = calls_->Now();
    absl::Status status = below_->WriteAt(offset, parts);
    calls_->Ended("a write", path_, BytesOf(parts), start);
    return status;
  }
  void StartRead(uint64_t offset, size_t bytes, void* to,
                 std::function<void(absl::StatusOr<size_t>)> done) override {
    below_->StartRead(offset, bytes, to,
                      [this, bytes, start = calls_->Now(),
                       done = std::move(done)](const absl::StatusOr<size_t>& read) {
                        calls_->Ended("a read", path_, bytes, start);
                        done(read);
                      });
  }
  void StartWrite(uint64_t offset, absl::Span<const ConstBytes> parts,
                  std::function<void(absl::Status)> done) override {
    below_->StartWrite(offset, parts,
                       [this, bytes = BytesOf(parts), start = calls_->Now(),
                        done = std::move(done)](const absl::Status& status) {
                         calls_->Ended("a write", path_, bytes, start);
                         done(status);
                       });
  }
  absl::Status Sync() override {
    const nanoseconds start = calls_->Now();
    absl::Status status = below_->Sync();
    calls_->Ended("a flush", path_, 0, start);
    return status;
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
    BALLAST_ASSIGN_OR_RETURN(std::unique_ptr<File> file, below()->Open(path, options));
    return std::make_unique<WatchedFile>(path, std::move(file), calls_);
  }

 private:
  const std::shared_ptr<SlowCalls> calls_;
};

}  // namespace

std::unique_ptr<FileSystem> WatchedFileSystem(FileSystem* below, const Clock* clock,
                                              const WatchOptions& options,
                                              std::function<void(const std::string&)> warn) {
  return std::make_unique<WatchedFiles>(
      below, std::make_shared<SlowCalls>(clock, options, std::move(warn)));
}

}  // namespace ballast
