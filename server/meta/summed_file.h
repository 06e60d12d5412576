// A small file that holds one number under a checksum, so that a torn file does not pass for a
// whole one:
// magic, 4 bytes | crc32c u32 of the number | the number, little-endian.
// Comes from: committed_mark, table_sums. Goes to: POSIX. Thread safety: any thread.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "common/bytes/crc32c.h"
#include "common/bytes/little_endian.h"

namespace ballast::server {

template <typename T>
std::string EncodeSummed(absl::string_view magic, T number) {
  std::string covered;
  AppendLittleEndian(number, &covered);
  std::string bytes(magic);
  AppendLittleEndian(Crc32c(covered.data(), covered.size()), &bytes);
  return bytes + covered;
}

// The number in the file at `path`; nullopt when there is no whole one.
template <typename T>
std::optional<T> ReadSummed(absl::string_view magic, const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  std::string bytes(magic.size() + sizeof(uint32_t) + sizeof(T), '\0');
  const ssize_t got = pread(file, bytes.data(), bytes.size(), 0);
  close(file);
  if (got != static_cast<ssize_t>(bytes.size())) return std::nullopt;
  const T number = ReadLittleEndian<T>(bytes, bytes.size() - sizeof(T));
  if (bytes != EncodeSummed(magic, number)) return std::nullopt;
  return number;
}

}  // namespace ballast::server
