#include "server/exchange/stored_zip.h"

#include <algorithm>
#include <utility>

#include "common/bytes/little_endian.h"
#include "zlib.h"

namespace ballast::server {
namespace {

constexpr uint32_t kIn64 = 0xffffffff;  // in place of a number of 4 GiB or more
constexpr uint16_t kPlainVersion = 20;
constexpr uint16_t k64Version = 45;
constexpr uint16_t k64Field = 0x0001;
constexpr uint16_t kPaddingField = 0x4246;  // as torch's own writer has it
constexpr uint32_t kFieldHeadBytes = 4;
constexpr uint16_t kUtf8 = 1 << 11;
constexpr uint32_t kFirstDay = 0x00210000;  // 1980-01-01 00:00: equal states give equal bytes

void Append16(uint64_t value, std::string* to) {
  AppendLittleEndian(static_cast<uint16_t>(value), to);
}
void Append32(uint64_t value, std::string* to) {
  AppendLittleEndian(static_cast<uint32_t>(value), to);
}
void Append64(uint64_t value, std::string* to) { AppendLittleEndian(value, to); }

bool IsLarge(uint64_t bytes) { return bytes >= kIn64; }

// From the needed version to the sizes: the fields that a local header and the directory share.
void AppendCommon(uint64_t bytes, uint32_t crc, std::string* to) {
  Append16(IsLarge(bytes) ? k64Version : kPlainVersion, to);
  Append16(kUtf8, to);
  Append16(0, to);  // stored
  Append32(kFirstDay, to);
  Append32(crc, to);
  Append32(std::min<uint64_t>(bytes, kIn64), to);
  Append32(std::min<uint64_t>(bytes, kIn64), to);
}

std::string SizesField(uint64_t bytes) {
  std::string field;
  if (!IsLarge(bytes)) return field;
  Append16(k64Field, &field);
  Append16(16, &field);
  Append64(bytes, &field);
  Append64(bytes, &field);
  return field;
}

// Ends of an archive whose directory begins after 4 GiB.
void AppendLargeEnds(uint64_t entries, uint64_t bytes, uint64_t offset, std::string* to) {
  Append32(0x06064b50, to);
  Append64(44, to);  // of the rest of this end
  Append16(k64Version, to);
  Append16(k64Version, to);
  Append64(0, to);  // disks
  Append64(entries, to);
  Append64(entries, to);
  Append64(bytes, to);
  Append64(offset, to);
  Append32(0x07064b50, to);
  Append32(0, to);
  Append64(offset + bytes, to);
  Append32(1, to);
}

}  // namespace

StoredZip::StoredZip(const std::vector<Entry>& small, std::string last_name, uint64_t last_bytes,
                     uint32_t alignment) {
  for (const Entry& entry : small) {
    Record record{entry.name, entry.bytes.size(), 0, small_.size(), 0};
    record.crc = static_cast<uint32_t>(
        crc32_z(0, reinterpret_cast<const Bytef*>(entry.bytes.data()), entry.bytes.size()));
    small_ += LocalHeader(record) + entry.bytes;
    records_.push_back(std::move(record));
  }
  last_ = {std::move(last_name), last_bytes, 0, small_.size(), 0};
  const uint64_t least = small_.size() + LocalHeader(last_).size() + kFieldHeadBytes;
  last_.padding =
      static_cast<uint32_t>(kFieldHeadBytes + (alignment - least % alignment) % alignment);
  data_offset_ = small_.size() + LocalHeader(last_).size();
}

std::string StoredZip::Head() const { return small_ + LocalHeader(last_); }

std::string StoredZip::Tail() const {
  std::string tail;
  for (const Record& record : records_) tail += DirectoryEntry(record);
  tail += DirectoryEntry(last_);
  const uint64_t bytes = tail.size();
  const uint64_t offset = data_offset_ + last_.bytes;
  const uint64_t entries = records_.size() + 1;
  if (IsLarge(offset)) AppendLargeEnds(entries, bytes, offset, &tail);
  Append32(0x06054b50, &tail);
  Append32(0, &tail);  // disks
  Append16(entries, &tail);
  Append16(entries, &tail);
  Append32(bytes, &tail);
  Append32(std::min<uint64_t>(offset, kIn64), &tail);
  Append16(0, &tail);  // a comment
  return tail;
}

std::string StoredZip::LocalHeader(const Record& record) {
  const std::string sizes = SizesField(record.bytes);
  std::string header;
  Append32(0x04034b50, &header);
  AppendCommon(record.bytes, record.crc, &header);
  Append16(record.name.size(), &header);
  Append16(sizes.size() + record.padding, &header);
  header += record.name + sizes;
  if (record.padding == 0) return header;
  Append16(kPaddingField, &header);
  Append16(record.padding - kFieldHeadBytes, &header);
  header.append(record.padding - kFieldHeadBytes, 'Z');
  return header;
}

std::string StoredZip::DirectoryEntry(const Record& record) {
  const std::string sizes = SizesField(record.bytes);
  std::string entry;
  Append32(0x02014b50, &entry);
  Append16(IsLarge(record.bytes) ? k64Version : kPlainVersion, &entry);
  AppendCommon(record.bytes, record.crc, &entry);
  Append16(record.name.size(), &entry);
  Append16(sizes.size(), &entry);
  Append16(0, &entry);  // a comment
  Append16(0, &entry);  // disk
  Append16(0, &entry);  // attributes
  Append32(0, &entry);
  Append32(record.offset, &entry);
  return entry + record.name + sizes;
}

}  // namespace ballast::server
