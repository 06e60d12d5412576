#include "bench/parts/raw_disk.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/parts/harness.h"
#include "common/base/status_macros.h"
#include "common/threads/thread_worker_pool.h"

namespace ballast::bench {
namespace {

constexpr size_t kWriteBlocks = 16;

// A command's output; none when it cannot be run or fails.
std::optional<std::string> OutputOf(const std::string& command) {
  std::FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return std::nullopt;
  std::string text;
  char part[4096];
  for (size_t got = 0; (got = std::fread(part, 1, sizeof(part), pipe)) > 0;) text.append(part, got);
  if (pclose(pipe) != 0) return std::nullopt;
  return text;
}

// For a shell.
std::string Quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace

uint64_t FreeDiskBytes(const std::string& path) {
  struct statvfs status = {};
  if (statvfs(path.c_str(), &status) != 0) return 0;
  return uint64_t{status.f_bavail} * status.f_frsize;
}

uint64_t AvailableMemoryBytes() {
  std::ifstream file("/proc/meminfo");
  std::string word;
  uint64_t kib = 0;
  while (file >> word) {
    if (word == "MemAvailable:" && file >> kib) return kib * 1024;
  }
  return 0;
}

absl::StatusOr<std::unique_ptr<RawFile>> RawFile::Create(const std::string& path, uint64_t bytes) {
  BALLAST_ASSIGN_OR_RETURN(Arena blocks, Arena::Create(kWriteBlocks * kBlockBytes));
  FillRandomBytes(blocks.data(), blocks.bytes(), 1);
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0644);
  if (fd < 0) return SystemError(absl::StrCat("cannot create ", path, " for direct I/O"));
  std::unique_ptr<RawFile> file(new RawFile(path, bytes, fd, std::move(blocks)));
  for (uint64_t block = 0; block < bytes / kBlockBytes; ++block) {
    BALLAST_RETURN_IF_ERROR(file->Write(block * kBlockBytes, file->BlockOf(block), kBlockBytes));
  }
  BALLAST_RETURN_IF_ERROR(file->Sync());
  return file;
}

RawFile::~RawFile() {
  close(fd_);
  unlink(path_.c_str());
}

absl::Status RawFile::Write(uint64_t offset, const void* data, size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t count = pwrite(fd_, from, bytes, static_cast<off_t>(offset));
    if (count <= 0) return SystemError("cannot write " + path_);
    from += count;
    offset += static_cast<uint64_t>(count);
    bytes -= static_cast<size_t>(count);
  }
  return absl::OkStatus();
}

absl::Status RawFile::Sync() {
  return fdatasync(fd_) == 0 ? absl::OkStatus() : SystemError("cannot flush " + path_);
}

absl::StatusOr<double> RawFile::WriteGroups(size_t group_bytes, double seconds) {
  const double start = Now();
  uint64_t written = 0;
  while (Now() - start < seconds) {
    for (size_t at = 0; at < group_bytes; at += kBlockBytes) {
      BALLAST_RETURN_IF_ERROR(Write(next_ * kBlockBytes, BlockOf(next_), kBlockBytes));
      next_ = (next_ + 1) % (bytes_ / kBlockBytes);
    }
    BALLAST_RETURN_IF_ERROR(Sync());
    written += group_bytes;
  }
  return static_cast<double>(written) / (Now() - start);
}

absl::StatusOr<double> RawFile::Transfer(int depth, uint64_t first, uint64_t blocks, bool write) {
  std::vector<Arena> buffers;
  for (int i = 0; i < depth; ++i) {
    BALLAST_ASSIGN_OR_RETURN(Arena buffer, Arena::Create(kBlockBytes));
    FillRandomBytes(buffer.data(), kBlockBytes, static_cast<uint64_t>(i) + 2);
    buffers.push_back(std::move(buffer));
  }
  ThreadWorkerPool pool(depth, "disk");
  std::atomic<uint64_t> taken{0};
  std::atomic<bool> failed{false};
  const double start = Now();
  pool.Run(static_cast<size_t>(depth), [&](size_t task) {
    for (uint64_t block = taken++; block < blocks; block = taken++) {
      const auto offset = static_cast<off_t>((first + block) % (bytes_ / kBlockBytes) *
                                             static_cast<uint64_t>(kBlockBytes));
      char* const data = buffers[task].data();
      const ssize_t count =
          write ? pwrite(fd_, data, kBlockBytes, offset) : pread(fd_, data, kBlockBytes, offset);
      if (count != static_cast<ssize_t>(kBlockBytes)) failed = true;
    }
  });
  if (write) BALLAST_RETURN_IF_ERROR(Sync());
  if (failed) return absl::InternalError(absl::StrCat("short transfer or error at ", path_));
  return Now() - start;
}

absl::StatusOr<double> RawFile::WriteDeep(int depth, double seconds) {
  constexpr uint64_t kBlocksAtOnce = 64;
  double spent = 0;
  uint64_t blocks = 0;
  while (spent < seconds) {
    BALLAST_ASSIGN_OR_RETURN(const double took, Transfer(depth, next_, kBlocksAtOnce, true));
    next_ = (next_ + kBlocksAtOnce) % (bytes_ / kBlockBytes);
    spent += took;
    blocks += kBlocksAtOnce;
  }
  return static_cast<double>(blocks * kBlockBytes) / spent;
}

absl::StatusOr<double> RawFile::ReadDeep(int depth) {
  BALLAST_ASSIGN_OR_RETURN(const double seconds,
                           Transfer(depth, 0, bytes_ / kBlockBytes, /*write=*/false));
  return static_cast<double>(bytes_) / seconds;
}

std::optional<Fio> Fio::Find() {
  std::optional<std::string> version = OutputOf("fio --version 2>/dev/null");
  if (!version.has_value()) return std::nullopt;
  version->resize(std::min(version->size(), version->find('\n')));
  const std::optional<std::string> engines = OutputOf("fio --enghelp 2>/dev/null");
  const bool aio = engines.has_value() && absl::StrContains(*engines, "libaio");
  return Fio(*version, aio ? "libaio --iodepth=4" : "psync");
}

std::string Fio::Describe() const {
  return absl::StrCat(version_, " --rw=write --bs=4M --direct=1 --ioengine=", engine_,
                      ", buffers in huge pages");
}

namespace {

// The rate in the first object called `name`; 0 for none.
double FioRate(const std::string& output, const std::string& name) {
  constexpr char kKey[] = "\"bw_bytes\" : ";
  const size_t object = output.find(absl::StrCat("\"", name, "\" : {"));
  const size_t key = object == std::string::npos ? object : output.find(kKey, object);
  if (key == std::string::npos) return 0;
  const size_t at = key + sizeof(kKey) - 1;
  double rate = 0;
  return absl::SimpleAtod(output.substr(at, output.find(',', at) - at), &rate) ? rate : 0;
}

// Debian's libc gives fio's buffers huge pages too; else the comparison is one of page sizes.
absl::StatusOr<double> RunFio(const std::string& arguments) {
  const std::string command =
      absl::StrCat("GLIBC_TUNABLES=glibc.malloc.hugetlb=1 fio --name=bench ",
                   "--direct=1 --time_based --output-format=json ", arguments);
  const std::optional<std::string> output = OutputOf(command);
  if (!output.has_value()) return absl::InternalError("fio failed: " + command);
  const double rate = FioRate(*output, "read") + FioRate(*output, "write");
  if (rate <= 0) return absl::InternalError("fio printed no rate: " + command);
  return rate;
}

}  // namespace

absl::StatusOr<double> Fio::Write(const std::string& path, uint64_t bytes, double seconds) const {
  return RunFio(
      absl::StrFormat("--filename=%s --rw=write --bs=4M --size=%d --runtime=%dms "
                      "--ioengine=%s",
                      Quoted(path), bytes, static_cast<int>(seconds * 1e3), engine_));
}

absl::StatusOr<double> Fio::Run(FioMode mode, const std::string& path, uint64_t bytes,
                                uint64_t block, int depth, double seconds) const {
  const char* const rw = mode == FioMode::kRead ? "read" : mode == FioMode::kWrite ? "write" : "rw";
  return RunFio(
      absl::StrFormat("--filename=%s --rw=%s --bs=%d --size=%d --runtime=%dms "
                      "--ioengine=libaio --iodepth=%d",
                      Quoted(path), rw, block, bytes, static_cast<int>(seconds * 1e3), depth));
}

}  // namespace ballast::bench
