#include "server/meta/committed_mark.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/meta/summed_file.h"

namespace ballast::server {
namespace {

constexpr absl::string_view kMarkMagic("BLMC", 4);

}  // namespace

std::optional<uint64_t> CommittedMark::Read(const std::string& path) {
  return ReadSummed<uint64_t>(kMarkMagic, path);
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
  const std::string mark = EncodeSummed(kMarkMagic, revision);
  [[maybe_unused]] const ssize_t written = pwrite(file_, mark.data(), mark.size(), 0);
}

}  // namespace ballast::server
