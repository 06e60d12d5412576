// Shared parts of common/safetensors' tests: files made by hand.
// Comes from: the tests in this folder. Goes to: MemoryDisk. Thread safety: pure functions.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/io/file.h"

namespace ballast {

inline std::string Text(const absl::Status& status) { return std::string(status.message()); }

// A file whose first field says `length`.
inline std::string RawFile(uint64_t length, absl::string_view json, absl::string_view data) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(length >> (8 * i)));
  bytes.append(json.data(), json.size());
  bytes.append(data.data(), data.size());
  return bytes;
}

inline std::string FileOf(absl::string_view json, absl::string_view data) {
  return RawFile(json.size(), json, data);
}

inline void PutFile(FileSystem* fs, const std::string& path, absl::string_view bytes) {
  const absl::StatusOr<std::unique_ptr<File>> file = fs->Open(path, {.mode = OpenMode::kCreate});
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->WriteAt(0, {ConstBytes{bytes.data(), bytes.size()}}).ok());
  ASSERT_TRUE((*file)->Sync().ok());
}

}  // namespace ballast
