// Files read whole, by which a process tells its friends: certificates, keys, tokens, lists of
// identities, quotas. A file open to other users proves nothing, so the mode counts. Comes from:
// common/tls, server/security. Goes to: POSIX. Thread safety: a pure function but for the file
// system, on which it blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace ballast {

// Access that the mode of a file must deny to others than its owner.
enum class FileGuard : uint8_t {
  kNone,    // nothing: the content is signed
  kWrite,   // writing
  kOthers,  // writing, and reading unless they are of its group
  kSecret,  // everything: mode 0600 or 0700, or 0640 where root owns it, as Kubernetes mounts
            // secrets
};

// The whole text of a regular file of at most `bytes_max` bytes. Errors, all with the path:
// NOT_FOUND; PERMISSION_DENIED when it cannot be read or its mode is wider than `guard`, with a
// good mode; INVALID_ARGUMENT for anything but a regular file, or too large a one.
absl::StatusOr<std::string> ReadGuardedFile(const std::string& path, FileGuard guard,
                                            size_t bytes_max);

// Tells whether a path names the same file with the same content as before: the device, number,
// size and times of the file at the end of its links, so that a link which is turned to another
// file counts as well. "-" where no file is.
std::string FileSignature(const std::string& path);

}  // namespace ballast
