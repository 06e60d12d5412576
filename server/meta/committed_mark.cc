#include "server/meta/committed_mark.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/crc32c.h"
#include "server/meta/little_endian.h"

namespace ballast::server {
namespace {

constexpr absl::string_view kMagic("BLMC", 4);
constexpr size_t kMarkBytes = 16;

std::string EncodeMark(uint64_t revision) {
  std::string covered;
  AppendLittleEndian(revision, &covered);
  std::string mark(kMagic);
  AppendLittleEndian(Crc32c(covered.data(), covered.size()), &mark);
  return mark + covered;
}

}  // namespace

std::optional<uint64_t> CommittedMark::Read(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  std::string bytes(kMarkBytes, '\0');
  const ssize_t got = pread(file, bytes.data(), bytes.size(), 0);
  close(file);
  if (got != static_cast<ssize_t>(kMarkBytes)) return std::nullopt;
  const auto revision = ReadLittleEndian<uint64_t>(bytes, 8);
  if (bytes != EncodeMark(revision)) return std::nullopt;
  return revision;
}

absl::StatusOr<CommittedMark> CommittedMark::Open(const std::string& path) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) {
    return absl::UnavailableError(absl::StrCat("cannot open ", path, ": ", std::strerror(errno),
                                               "; check permissions and space"));
  }
  return CommittedMark(file);
}

CommittedMark::CommittedMark(CommittedMark&& other) noexcept
    : file_(std::exchange(other.file_, -1)) {}

CommittedMark::~CommittedMark() {
  if (file_ >= 0) close(file_);
}

void CommittedMark::Advance(uint64_t revision) {
  const std::string mark = EncodeMark(revision);
  [[maybe_unused]] const ssize_t written = pwrite(file_, mark.data(), mark.size(), 0);
}

}  // namespace ballast::server
