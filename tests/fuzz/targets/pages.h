// Files of pages, short enough to be inputs: they contain only the beginnings of pages. Checksums
// are formed when the files are made, so that changed pages are read further than to their
// checksum.
//   input := item*;  item := file u8 | page u8 | flags u8 | length u16 | bytes
// Comes from: the targets log and slots. Goes to: MemoryDisk. Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/io/memory_disk.h"
#include "tests/fuzz/fuzz_random.h"

namespace ballast::fuzz {

struct PageItem {
  static constexpr uint8_t kSealHeader = 1;   // the header's own checksum
  static constexpr uint8_t kSealPayload = 2;  // that of the payload in the header
  static constexpr uint8_t kSealChain = 4;    // that of the header in front
  uint8_t file = 0;
  uint8_t page = 0;
  uint8_t flags = 0;
  std::string bytes;  // at most a page
};

std::vector<PageItem> ParseItems(absl::string_view input);
std::string JoinItems(const std::vector<PageItem>& items);

// One to four changes: of numbers in an item, of where it stands, of items as a whole.
std::string MutateItems(const std::string& input, FuzzRandom* random);

// The content of these files of `disk`: an item for each page that is not zeros. Of a page that
// begins with "BALL", a header, the first `header_bytes` alone, and all its checksums are computed
// again.
std::vector<PageItem> ItemsOf(MemoryDisk* disk, const std::vector<std::string>& paths,
                              size_t header_bytes);

// `files` files of `pages` pages, zeros but for the items; places are taken modulo both.
std::vector<std::string> FilesOf(const std::vector<PageItem>& items, size_t files, size_t pages);

// Writes `bytes` to a new file.
void PutFile(MemoryDisk* disk, const std::string& path, const std::string& bytes);

}  // namespace ballast::fuzz
