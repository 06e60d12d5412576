// See aio_handle.h.
#include "client/aio/aio_handle.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/io/file_error.h"

namespace ballast {
namespace {

constexpr int kQueueDepthMax = 4096;
constexpr int kParallelismMax = 64;
constexpr size_t kChunkBytesMax = size_t{8} << 20;
constexpr size_t kStagingBytes = size_t{32} << 20;

absl::Status CheckOptions(const AioHandleOptions& options) {
  if (options.block_bytes == 0 || options.block_bytes % kPageBytes != 0) {
    return absl::InvalidArgumentError(absl::StrCat("block_size ", options.block_bytes,
                                                   "; use a multiple of ", kPageBytes, " bytes"));
  }
  if (options.queue_depth < 1 || options.queue_depth > kQueueDepthMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("queue_depth ", options.queue_depth, "; use 1 to ", kQueueDepthMax));
  }
  if (options.parallelism < 1 || options.parallelism > kParallelismMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("intra_op_parallelism ", options.parallelism, "; use 1 to ", kParallelismMax));
  }
  return absl::OkStatus();
}

std::unique_ptr<Staging> MakeStaging(const AioHandleOptions& options) {
  const size_t chunk = std::min<uint64_t>(options.block_bytes, kChunkBytesMax);
  // More than the queue takes: the device has work while bytes are copied.
  const size_t depth = static_cast<size_t>(options.queue_depth);
  const size_t chunks = std::min<size_t>(kStagingBytes / chunk, depth + depth / 2 + 1);
  return std::make_unique<Staging>(chunk, std::max<size_t>(2, chunks));
}

// Opens `path` for reading and writing; makes it when it is not there.
absl::StatusOr<std::unique_ptr<File>> OpenForWrite(FileSystem* files, const std::string& path) {
  const OpenOptions options{.mode = OpenMode::kWrite, .direct = true};
  absl::StatusOr<std::unique_ptr<File>> file = files->Open(path, options);
  if (!absl::IsNotFound(file.status())) return file;
  const absl::StatusOr<std::unique_ptr<File>> made =
      files->Open(path, {.mode = OpenMode::kCreateNew});
  if (!made.ok() && !absl::IsAlreadyExists(made.status())) return made.status();
  if (made.ok()) chmod(path.c_str(), S_IRUSR | S_IWUSR);  // As DeepNVMe does.
  return files->Open(path, options);
}

absl::Status CheckRange(const TransferRange& range) {
  constexpr auto kOffsetMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (range.offset > kOffsetMax || range.bytes > kOffsetMax - range.offset) {
    return absl::InvalidArgumentError(absl::StrCat(range.bytes, " bytes at offset ", range.offset,
                                                   " of ", range.path,
                                                   ": a file has at most 2^63 - 1 bytes"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<AioHandle>> AioHandle::Create(const AioHandleOptions& options,
                                                             FileSystem* files,
                                                             const IoBackendMaker& make_backend) {
  BALLAST_RETURN_IF_ERROR(CheckOptions(options));
  std::vector<Lane> lanes(static_cast<size_t>(options.parallelism));
  for (Lane& lane : lanes) {
    const IoOptions engine{.block_bytes = options.block_bytes, .queue_depth = options.queue_depth};
    BALLAST_ASSIGN_OR_RETURN(auto backend, make_backend(options.queue_depth));
    BALLAST_ASSIGN_OR_RETURN(lane.engine, IoEngine::Create(engine, std::move(backend)));
    lane.staging = MakeStaging(options);
  }
  return std::unique_ptr<AioHandle>(new AioHandle(options, files, std::move(lanes)));
}

AioHandle::AioHandle(const AioHandleOptions& options, FileSystem* files, std::vector<Lane> lanes)
    : options_(options),
      files_(files),
      lanes_(std::move(lanes)),
      threads_("nvme", options.parallelism) {}

AioHandle::~AioHandle() {
  MutexLock lock(&mu_);
  while (!open_.empty()) ended_changed_.Wait(&mu_);
}

absl::StatusOr<uint64_t> AioHandle::StartRead(const TransferRange& range, bool validate,
                                              std::shared_ptr<void> owner) {
  BALLAST_RETURN_IF_ERROR(CheckRange(range));
  BALLAST_ASSIGN_OR_RETURN(auto file, files_->Open(range.path, {.direct = true}));
  BALLAST_RETURN_IF_ERROR(CheckReadSize(file.get(), range));
  return Start(IoKind::kRead, range, validate, std::move(file), std::move(owner));
}

absl::StatusOr<uint64_t> AioHandle::StartWrite(const TransferRange& range, bool validate,
                                               std::shared_ptr<void> owner) {
  BALLAST_RETURN_IF_ERROR(CheckRange(range));
  BALLAST_ASSIGN_OR_RETURN(auto file, OpenForWrite(files_, range.path));
  return Start(IoKind::kWrite, range, validate, std::move(file), std::move(owner));
}

uint64_t AioHandle::Start(IoKind kind, const TransferRange& range, bool validate,
                          std::unique_ptr<File> file, std::shared_ptr<void> owner) {
  const int parts = PartsOf(range.bytes);
  uint64_t number = 0;
  {
    MutexLock lock(&mu_);
    number = ++last_;
    open_.insert(number);
    operations_[number] = {range.memory, range.bytes, std::move(owner)};
  }
  const auto ended = [this, number, validate](std::shared_ptr<Transfer> transfer,
                                              const absl::Status& status) {
    if (!status.ok() || !validate) return End(number, status);
    // Not here: this may be an engine's thread, which must not wait for the disk.
    threads_.Post([this, number, transfer] { End(number, transfer->Validate()); });
  };
  const auto transfer = std::make_shared<Transfer>(kind, range, std::move(file), parts, ended);
  threads_.Post([this, transfer, parts] { Begin(transfer, parts); });
  return number;
}

// A part is at least one block.
int AioHandle::PartsOf(uint64_t bytes) const {
  const uint64_t blocks = (bytes + options_.block_bytes - 1) / options_.block_bytes;
  return static_cast<int>(
      std::clamp<uint64_t>(blocks, 1, static_cast<uint64_t>(options_.parallelism)));
}

void AioHandle::Begin(const std::shared_ptr<Transfer>& transfer, int parts) {
  const absl::Status reserved = transfer->Reserve();
  if (!reserved.ok()) return transfer->Fail(reserved);
  for (int part = 1; part < parts; ++part) {
    const Lane& lane = lanes_[static_cast<size_t>(part)];
    threads_.Post([transfer, part, &lane] {
      transfer->RunPart(part, lane.engine.get(), lane.staging.get());
    });
  }
  transfer->RunPart(0, lanes_[0].engine.get(), lanes_[0].staging.get());
}

void AioHandle::End(uint64_t number, const absl::Status& status) {
  MutexLock lock(&mu_);
  open_.erase(number);
  ended_.numbers.push_back(number);
  ended_.status.Update(status);
  ended_changed_.NotifyAll();  // Under the lock: the destructor waits for this.
}

uint64_t AioHandle::last() const {
  MutexLock lock(&mu_);
  return last_;
}

bool AioHandle::Wait(uint64_t last, std::chrono::nanoseconds timeout) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  MutexLock lock(&mu_);
  while (!open_.empty() && *open_.begin() <= last) {
    const auto left = until - std::chrono::steady_clock::now();
    if (left <= std::chrono::nanoseconds::zero()) return false;
    ended_changed_.WaitFor(&mu_, left);
  }
  return true;
}

AioEnded AioHandle::Take() {
  MutexLock lock(&mu_);
  AioEnded taken = std::exchange(ended_, AioEnded());
  for (const uint64_t number : taken.numbers) {
    taken.owners.push_back(std::move(operations_.extract(number).mapped().owner));
  }
  return taken;
}

bool AioHandle::Uses(const char* memory, uint64_t bytes) const {
  MutexLock lock(&mu_);
  return std::any_of(operations_.begin(), operations_.end(), [&](const auto& entry) {
    const Operation& used = entry.second;
    return memory < used.memory + used.bytes && used.memory < memory + bytes;
  });
}

}  // namespace ballast
