// Thread safety: mu_ guards the table of engines; an engine belongs to all files of its device.
#include "common/io/engine_files.h"

#include <sys/stat.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/sync.h"
#include "common/io/forwarding_files.h"

namespace ballast {
namespace {

bool OnPages(uint64_t offset, const void* data, size_t bytes) {
  return (offset | reinterpret_cast<uintptr_t>(data) | bytes) % kPageBytes == 0;
}

// A write of several parts, until the last of them has ended.
struct PartsUnderWay {
  std::atomic<size_t> left;
  Mutex mu;
  absl::Status status ABSL_GUARDED_BY(mu);  // the first error
  std::function<void(absl::Status)> done;

  void End(const absl::Status& part) {
    {
      MutexLock lock(&mu);
      status.Update(part);
    }
    if (left.fetch_sub(1) != 1) return;
    absl::Status all;
    {
      MutexLock lock(&mu);
      all = status;
    }
    done(std::move(all));
  }
};

class EngineFile : public File {
 public:
  EngineFile(std::string path, std::unique_ptr<File> below, bool urgent,
             std::shared_ptr<IoEngine> engine)
      : path_(std::move(path)),
        below_(std::move(below)),
        urgent_(urgent),
        engine_(std::move(engine)) {}

  absl::StatusOr<size_t> ReadAt(uint64_t offset, size_t bytes, void* to) override {
    return below_->ReadAt(offset, bytes, to);
  }
  absl::Status WriteAt(uint64_t offset, absl::Span<const ConstBytes> parts) override {
    return below_->WriteAt(offset, parts);
  }
  absl::Status Sync() override { return below_->Sync(); }
  absl::Status Allocate(uint64_t bytes) override { return below_->Allocate(bytes); }
  absl::StatusOr<uint64_t> Size() override { return below_->Size(); }
  int direct_descriptor() const override { return below_->direct_descriptor(); }

  void StartRead(uint64_t offset, size_t bytes, void* to,
                 std::function<void(absl::StatusOr<size_t>)> done) override {
    if (!OnPages(offset, to, bytes)) return done(ReadAt(offset, bytes, to));
    const auto ended = [this, offset, bytes, to, done](const absl::Status& status) {
      if (status.ok()) return done(bytes);
      // Past the end of the file: only a plain read shows how many bytes exist.
      done(absl::IsOutOfRange(status) ? ReadAt(offset, bytes, to) : status);
    };
    engine_->Submit(Request(IoKind::kRead, offset, to, bytes, ended));
  }

  void StartWrite(uint64_t offset, absl::Span<const ConstBytes> parts,
                  std::function<void(absl::Status)> done) override {
    uint64_t at = offset;
    for (const ConstBytes& part : parts) {
      if (!OnPages(at, part.data, part.bytes)) return done(WriteAt(offset, parts));
      at += part.bytes;
    }
    const auto all = std::make_shared<PartsUnderWay>();
    all->left = parts.size() + 1;  // One for this call.
    all->done = std::move(done);
    const auto ended = [all](const absl::Status& status) { all->End(status); };
    for (const ConstBytes& part : parts) {
      void* const data = const_cast<void*>(part.data);
      engine_->Submit(Request(IoKind::kWrite, offset, data, part.bytes, ended));
      offset += part.bytes;
    }
    all->End(absl::OkStatus());
  }

 private:
  IoRequest Request(IoKind kind, uint64_t offset, void* data, size_t bytes,
                    std::function<void(const absl::Status&)> done) const {
    return {.kind = kind,
            .descriptor = below_->direct_descriptor(),
            .path = path_,
            .offset = offset,
            .data = data,
            .bytes = bytes,
            .urgent = urgent_,
            .done = std::move(done)};
  }

  const std::string path_;
  const std::unique_ptr<File> below_;
  const bool urgent_;
  const std::shared_ptr<IoEngine> engine_;
};

class EngineFiles : public ForwardingFiles {
 public:
  EngineFiles(FileSystem* below, const IoOptions& options, IoBackendMaker make_backend)
      : ForwardingFiles(below), options_(options), make_backend_(std::move(make_backend)) {}

  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path,
                                             const OpenOptions& options) override {
    BALLAST_ASSIGN_OR_RETURN(std::unique_ptr<File> file, below()->Open(path, options));
    if (file->direct_descriptor() < 0) return file;
    std::shared_ptr<IoEngine> engine = EngineOf(path, file->direct_descriptor());
    if (engine == nullptr) return file;
    return std::make_unique<EngineFile>(path, std::move(file), options.urgent, std::move(engine));
  }

 private:
  // The engine of the device that holds the file; null where there is none.
  std::shared_ptr<IoEngine> EngineOf(const std::string& path, int descriptor) {
    struct stat status {};
    if (fstat(descriptor, &status) != 0) return nullptr;
    MutexLock lock(&mu_);
    const auto [it, fresh] = engines_.try_emplace(status.st_dev);
    if (!fresh) return it->second;
    absl::StatusOr<std::unique_ptr<IoEngine>> engine = MakeEngine(path);
    if (engine.ok()) {
      it->second = *std::move(engine);
    } else {
      BALLAST_LOG(WARN) << "no asynchronous I/O on the device of " << path
                        << ", so the log and state on it are written more slowly: "
                        << engine.status().message();
    }
    return it->second;
  }

  absl::StatusOr<std::unique_ptr<IoEngine>> MakeEngine(const std::string& path) {
    const std::string directory = std::filesystem::path(path).parent_path().string();
    if (!below()->DirectIo(directory.empty() ? "." : directory)) {
      return absl::FailedPreconditionError("its file system takes no direct I/O");
    }
    BALLAST_ASSIGN_OR_RETURN(auto backend, make_backend_(options_.queue_depth));
    return IoEngine::Create(options_, std::move(backend));
  }

  const IoOptions options_;
  const IoBackendMaker make_backend_;
  Mutex mu_;
  std::map<uint64_t, std::shared_ptr<IoEngine>> engines_ ABSL_GUARDED_BY(mu_);  // by device
};

}  // namespace

std::unique_ptr<FileSystem> EngineFileSystem(FileSystem* below, const IoOptions& options,
                                             IoBackendMaker make_backend) {
  return std::make_unique<EngineFiles>(below, options, std::move(make_backend));
}

}  // namespace ballast
