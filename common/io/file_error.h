// Errors of the operating system as Status: one table of codes and one form of words for every
// FileSystem, so that a simulated disk fails exactly as the real one does.
// Comes from: posix_file.cc, memory_disk.cc. Goes to: callers of file.h.
// Thread safety: a pure function.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ballast {

// The size that no file of this process may exceed (RLIMIT_FSIZE), as `ulimit -f` and batch systems
// set it. A write beyond it fails with EFBIG where SIGXFSZ is ignored. None: there is no limit.
std::optional<uint64_t> FileBytesMax();

// Whether errno value `error` of a failed link means that links are impossible.
bool CannotLink(int error);

// The Status of errno value `error`, coded as file.h says. The text is "cannot <operation> <path>:
// <system's words>" and the next step, where there is one. `operation` is a verb with its numbers:
// "write 512 bytes at offset 0 of".
absl::Status FileError(int error, absl::string_view operation, absl::string_view path);
// The same of an operation on stored data (read, list, open and not create): EIO is DATA_LOSS. A
// failed write or flush has lost nothing stored earlier.
absl::Status FileReadError(int error, absl::string_view operation, absl::string_view path);

}  // namespace ballast
