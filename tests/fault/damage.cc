#include "tests/fault/damage.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace ballast::fault {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kSector = 512;
constexpr size_t kFileBytesMax = size_t{1} << 26;

using sim::Random;

size_t Pages(const std::string& file) { return (file.size() + kPage - 1) / kPage; }

bool Empty(const std::string& file, size_t page) {
  const size_t end = std::min(file.size(), (page + 1) * kPage);
  return std::all_of(file.begin() + static_cast<ptrdiff_t>(page * kPage),
                     file.begin() + static_cast<ptrdiff_t>(end), [](char c) { return c == 0; });
}

// A page of the file, four times in five one that holds something.
size_t PickPage(const std::string& file, Random* random) {
  const size_t pages = Pages(file);
  if (random->OneIn(5)) return random->Below(pages);
  for (int i = 0; i < 1000; ++i) {
    const size_t page = random->Below(pages);
    if (!Empty(file, page)) return page;
  }
  return 0;
}

// Puts page `from_page` of `from` into `file`; bytes past either end stay away.
void CopyPage(const std::string& from, size_t from_page, size_t to_page, std::string* file) {
  const std::string bytes = from.substr(std::min(from.size(), from_page * kPage), kPage);
  const size_t at = to_page * kPage;
  file->replace(at, std::min(bytes.size(), file->size() - at), bytes, 0, file->size() - at);
}

void Zero(size_t page, size_t count, std::string* file) {
  const size_t at = page * kPage;
  const size_t bytes = std::min(count * kPage, file->size() - at);
  file->replace(at, bytes, bytes, '\0');
}

std::string Garbage(size_t bytes, Random* random) {
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(random->Next());
  return text;
}

// A file of `image`, every kind of file as often as the others.
std::string PickFile(const Image& image, Random* random) {
  std::map<absl::string_view, std::vector<std::string>> kinds;
  for (const auto& [path, content] : image) {
    if (!content.empty()) kinds[FileKind(path)].push_back(path);
  }
  BALLAST_CHECK(!kinds.empty());
  const auto kind = std::next(kinds.begin(), static_cast<ptrdiff_t>(random->Below(kinds.size())));
  return random->Pick(kind->second);
}

// Another file of the same kind; `path` itself when there is none.
std::string Sibling(const Image& image, const std::string& path, Random* random) {
  std::vector<std::string> others;
  for (const auto& [other, content] : image) {
    if (other != path && FileKind(other) == FileKind(path)) others.push_back(other);
  }
  return others.empty() ? path : random->Pick(others);
}

// What `path` holds in `image`, nothing when it is not there.
std::string Content(const Image& image, const std::string& path) {
  const auto found = image.find(path);
  return found == image.end() ? "" : found->second;
}

// Damage inside a file.
std::string DamagePages(DamageKind kind, const std::string& path, const Sources& sources,
                        Random* random, Image* image) {
  std::string* const file = &image->at(path);
  const size_t page = PickPage(*file, random);
  const size_t bytes = std::min(kPage, file->size() - page * kPage);
  const size_t at = page * kPage + random->Below(bytes);
  if (kind == DamageKind::kFlipBit) {
    (*file)[at] = static_cast<char>((*file)[at] ^ (1 << random->Below(8)));
    return absl::StrCat("at byte ", at);
  }
  if (kind == DamageKind::kGarbageSector) {
    const size_t sector = at / kSector * kSector;
    const size_t count = std::min(kSector, file->size() - sector);
    file->replace(sector, count, Garbage(count, random));
    return absl::StrCat("at byte ", sector);
  }
  const size_t other = PickPage(*file, random);
  const std::string before = *file;
  if (kind == DamageKind::kZeroPage) Zero(page, 1, file);
  if (kind == DamageKind::kZeroPages) Zero(page, random->Between(2, 16), file);
  if (kind == DamageKind::kMisdirected) CopyPage(before, other, page, file);
  if (kind == DamageKind::kSwapPages) {
    CopyPage(before, other, page, file);
    CopyPage(before, page, other, file);
  }
  if (kind == DamageKind::kForeignPage) {
    const std::string from = PickFile(*image, random);
    CopyPage(std::string(image->at(from)), PickPage(image->at(from), random), page, file);
  }
  if (kind == DamageKind::kStalePage) {
    CopyPage(Content(*sources.earlier, path), page, page, file);
  }
  return absl::StrCat("page ", page, ", with ", other);
}

// Damage to a file as a whole.
std::string DamageFile(DamageKind kind, const std::string& path, const Sources& sources,
                       Random* random, Image* image) {
  std::string* const file = &image->at(path);
  switch (kind) {
    case DamageKind::kTruncated:
      file->resize(random->Below(file->size()));
      return absl::StrCat("to ", file->size(), " bytes");
    case DamageKind::kExtended:
      file->append(Garbage(random->Between(1, 2 * kPage), random));
      return absl::StrCat("to ", file->size(), " bytes");
    case DamageKind::kStaleFile:
      *file = Content(*sources.earlier, path);
      return "";
    case DamageKind::kOtherServer:
      *file = Content(*sources.other_server, path);
      return "";
    case DamageKind::kSwapFiles: {
      const std::string other = Sibling(*image, path, random);
      if (other != path) file->swap(image->at(other));
      return absl::StrCat("with ", other);
    }
    default:
      image->erase(path);
      return "";
  }
}

}  // namespace

Image ImageOf(MemoryDisk* disk) {
  Image image;
  for (const std::string& path : disk->Paths()) {
    image["/" + path] = *ReadWholeFile(disk, path, kFileBytesMax);
  }
  return image;
}

std::unique_ptr<MemoryDisk> DiskOf(const Image& image) {
  auto disk = std::make_unique<MemoryDisk>();
  for (const auto& [path, content] : image) {
    for (size_t at = path.find('/', 1); at != std::string::npos; at = path.find('/', at + 1)) {
      BALLAST_CHECK(disk->MakeDirectory(path.substr(0, at)).ok());
    }
    BALLAST_CHECK(ReplaceFile(disk.get(), path, content).ok());
  }
  return disk;
}

const char* DamageName(DamageKind kind) {
  static constexpr const char* kNames[] = {
      "flip_bit",    "zero_page",    "zero_pages",   "garbage_sector", "swap_pages",
      "misdirected", "foreign_page", "stale_page",   "truncated",      "extended",
      "stale_file",  "swap_files",   "other_server", "missing",        "stale_directory"};
  static_assert(std::size(kNames) == static_cast<size_t>(DamageKind::kCount));
  return kNames[static_cast<size_t>(kind)];
}

absl::string_view FileKind(absl::string_view path) {
  if (absl::StrContains(path, "/meta/")) return "meta";
  const absl::string_view name = path.substr(path.rfind('/') + 1);
  return absl::StartsWith(name, "log-") ? name.substr(0, 3) : name;
}

std::string Damage(DamageKind kind, const Sources& sources, Random* random, Image* image) {
  if (kind == DamageKind::kStaleDirectory) {
    *image = *sources.earlier;
    return "everything";
  }
  const std::string path = PickFile(*image, random);
  const std::string where = kind <= DamageKind::kStalePage
                                ? DamagePages(kind, path, sources, random, image)
                                : DamageFile(kind, path, sources, random, image);
  return absl::StrCat(path, " ", where);
}

}  // namespace ballast::fault
