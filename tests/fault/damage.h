// Damage to the files of a server that is down, as disks, file systems and people cause it.
// Comes from: corruptions.cc. Goes to: copies of files in memory. Thread safety: thread-compatible.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/io/memory_disk.h"
#include "tests/sim/world/random.h"

namespace ballast::fault {

// Every file of a server, path -> content.
using Image = std::map<std::string, std::string>;

// Reads all files of `disk`, or makes a disk of them.
Image ImageOf(MemoryDisk* disk);
std::unique_ptr<MemoryDisk> DiskOf(const Image& image);

enum class DamageKind : uint8_t {
  kFlipBit,
  kZeroPage,
  kZeroPages,      // a run of up to 16
  kGarbageSector,  // 512 random bytes
  kSwapPages,      // of one file
  kMisdirected,    // a page written to another place of the same file
  kForeignPage,    // a page of another file
  kStalePage,      // a page as it was earlier
  kTruncated,
  kExtended,     // garbage after the end
  kStaleFile,    // a whole file as it was earlier
  kSwapFiles,    // two files of one kind, names exchanged
  kOtherServer,  // the same file of another server
  kMissing,
  kStaleDirectory,  // everything as it was earlier
  kCount,
};
const char* DamageName(DamageKind kind);

// The kinds of damage to an image.
struct Sources {
  const Image* earlier = nullptr;
  const Image* other_server = nullptr;
};

// Damages one file of `image` and says which and where. `live`: pages that hold something are
// struck four times in five, or most damage would go to empty space.
std::string Damage(DamageKind kind, const Sources& sources, sim::Random* random, Image* image);

// "log", "slots", "meta": the kinds of files, for counting.
absl::string_view FileKind(absl::string_view path);

}  // namespace ballast::fault
