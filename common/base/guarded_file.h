// Files that are read whole, and by which a process tells its friends: certificates, keys, tokens,
// lists of identities, quotas. What others may write or read says nothing, so the mode counts.
// Comes from: common/tls, server/security. Goes to: POSIX. Thread safety: a pure function but for
// the file system, on which it blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace ballast {

// What the mode of a file must keep from others than its owner.
enum class FileGuard : uint8_t {
  kNone,    // nothing: what the file says is signed
  kWrite,   // writing
  kOthers,  // writing, and reading unless they are of its group
  kSecret,  // everything: mode 0600 or 0700, or 0640 where root owns it, as Kubernetes mounts
            // secrets
};

// The whole text of a regular file of at most `bytes_max` bytes. Errors, all with the path:
// NOT_FOUND; PERMISSION_DENIED when it cannot be read or its mode is wider than `guard`, with a
// mode that is not; INVALID_ARGUMENT for one that is no file or too large.
absl::StatusOr<std::string> ReadGuardedFile(const std::string& path, FileGuard guard,
                                            size_t bytes_max);

// Tells whether a path names the same file with the same content as before: the device, number,
// size and times of what stands at the end of its links, so that a link which is turned to another
// file counts as well. "-" where no file is.
std::string FileSignature(const std::string& path);

}  // namespace ballast
