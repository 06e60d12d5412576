#include "tests/fuzz/targets/pages.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "common/base/check.h"
#include "common/io/file.h"
#include "tests/fuzz/byte_mutator.h"

namespace ballast::fuzz {
namespace {

constexpr size_t kItemHeaderBytes = 5;
constexpr size_t kItemsMax = 64;
constexpr size_t kFileBytesMax = size_t{1} << 20;
constexpr uint8_t kSealAll = PageItem::kSealHeader | PageItem::kSealPayload | PageItem::kSealChain;

void MutateItem(PageItem* item, FuzzRandom* random) {
  switch (random->Below(8)) {
    case 0:
      item->page = static_cast<uint8_t>(random->Below(8));
      return;
    case 1:
      item->file = static_cast<uint8_t>(random->Below(3));
      return;
    case 2:
      item->flags ^= static_cast<uint8_t>(1u << random->Below(3));
      return;
    case 3:
      item->bytes = MutateBytes(std::move(item->bytes), {}, random);
      return;
    default:
      return MutateNumber(&item->bytes, random);
  }
}

void MutateList(std::vector<PageItem>* items, FuzzRandom* random) {
  const size_t chosen = random->Below(items->size());
  const size_t other = random->Below(items->size());
  if (random->OneIn(3)) {
    items->erase(items->begin() + static_cast<ptrdiff_t>(chosen));
  } else if (random->OneIn(2)) {
    std::swap((*items)[chosen].bytes, (*items)[other].bytes);
  } else if (items->size() < kItemsMax) {
    PageItem copy = (*items)[chosen];
    copy.page = static_cast<uint8_t>(random->Below(8));
    items->insert(items->begin() + static_cast<ptrdiff_t>(other), std::move(copy));
  }
}

}  // namespace

std::vector<PageItem> ParseItems(absl::string_view input) {
  std::vector<PageItem> items;
  while (input.size() >= kItemHeaderBytes && items.size() < kItemsMax) {
    const auto byte = [&](size_t at) { return static_cast<uint8_t>(input[at]); };
    PageItem item{.file = byte(0), .page = byte(1), .flags = byte(2)};
    const size_t length = std::min<size_t>(byte(3) | byte(4) << 8, kPageBytes);
    input.remove_prefix(kItemHeaderBytes);
    item.bytes = std::string(input.substr(0, length));
    input.remove_prefix(item.bytes.size());
    items.push_back(std::move(item));
  }
  return items;
}

std::string JoinItems(const std::vector<PageItem>& items) {
  std::string input;
  for (const PageItem& item : items) {
    const size_t length = std::min<size_t>(item.bytes.size(), kPageBytes);
    for (const size_t byte :
         {size_t{item.file}, size_t{item.page}, size_t{item.flags}, length & 0xFF, length >> 8}) {
      input.push_back(static_cast<char>(byte));
    }
    input.append(item.bytes, 0, length);
  }
  return input;
}

std::string MutateItems(const std::string& input, FuzzRandom* random) {
  std::vector<PageItem> items = ParseItems(input);
  const uint64_t changes = 1 + random->Below(4);
  for (uint64_t i = 0; i < changes && !items.empty(); ++i) {
    if (random->OneIn(6)) {
      MutateList(&items, random);
    } else {
      MutateItem(&items[random->Below(items.size())], random);
    }
  }
  return JoinItems(items);
}

std::vector<PageItem> ItemsOf(MemoryDisk* disk, const std::vector<std::string>& paths,
                              size_t header_bytes) {
  std::vector<PageItem> items;
  for (size_t file = 0; file < paths.size(); ++file) {
    const auto bytes = ReadWholeFile(disk, paths[file], kFileBytesMax);
    BALLAST_CHECK(bytes.ok());
    for (size_t page = 0; page * kPageBytes < bytes->size(); ++page) {
      PageItem item{.file = static_cast<uint8_t>(file), .page = static_cast<uint8_t>(page)};
      item.bytes = bytes->substr(page * kPageBytes, kPageBytes);
      if (absl::StartsWith(item.bytes, "BALL")) {
        item.bytes.resize(header_bytes);
        item.flags = kSealAll;
      }
      item.bytes.resize(item.bytes.find_last_not_of('\0') + 1);
      if (!item.bytes.empty()) items.push_back(std::move(item));
    }
  }
  return items;
}

std::vector<std::string> FilesOf(const std::vector<PageItem>& items, size_t files, size_t pages) {
  std::vector<std::string> made(files, std::string(pages * kPageBytes, '\0'));
  for (const PageItem& item : items) {
    made[item.file % files].replace(item.page % pages * kPageBytes, item.bytes.size(), item.bytes);
  }
  return made;
}

void PutFile(MemoryDisk* disk, const std::string& path, const std::string& bytes) {
  const auto file = disk->Open(path, {.mode = OpenMode::kCreate});
  BALLAST_CHECK(file.ok());
  const ConstBytes all{bytes.data(), bytes.size()};
  BALLAST_CHECK((*file)->WriteAt(0, {all}).ok());
}

}  // namespace ballast::fuzz
