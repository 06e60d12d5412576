// StoredZip: the head and the tail of a zip archive of uncompressed entries, of which the last one
// may be large: its bytes are written between the two.
// Comes from: TorchFile. Goes to: bytes. Source: PKWARE's APPNOTE 6.3, sections 4.3.7 (local
// header), 4.3.12 (directory), 4.3.14 to 4.3.16 (ends), 4.5.3 (sizes of 4 GiB and more).
// Thread safety: immutable once made, except for SetLastCrc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace ballast::server {

class StoredZip {
 public:
  // A small entry.
  struct Entry {
    std::string name;
    std::string bytes;
  };

  // The last entry begins at a multiple of `alignment` of the archive.
  StoredZip(const std::vector<Entry>& small, std::string last_name, uint64_t last_bytes,
            uint32_t alignment);

  // Where the last entry's bytes begin, and the size of the archive.
  uint64_t data_offset() const { return data_offset_; }
  uint64_t archive_bytes() const { return data_offset_ + last_.bytes + Tail().size(); }

  // CRC32 of the last entry's bytes, as zlib has it.
  void SetLastCrc(uint32_t crc) { last_.crc = crc; }
  // The bytes before the last entry's and after them.
  std::string Head() const;
  std::string Tail() const;

 private:
  struct Record {
    std::string name;
    uint64_t bytes = 0;
    uint32_t crc = 0;
    uint64_t offset = 0;   // of its header
    uint32_t padding = 0;  // bytes of an extra field that moves the entry's bytes
  };
  static std::string LocalHeader(const Record& record);
  static std::string DirectoryEntry(const Record& record);

  std::string small_;            // the small entries with their headers
  std::vector<Record> records_;  // of the small entries
  Record last_;
  uint64_t data_offset_ = 0;
};

}  // namespace ballast::server
