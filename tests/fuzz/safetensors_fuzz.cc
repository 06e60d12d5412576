// Whatever the bytes are, the parsers of common/safetensors answer, and what they take survives a
// round trip. Each input is read in three ways: as a file; as a header whose first 8 bytes say how
// much data there is; as an index.
// Comes from: libFuzzer (preset fuzz), corpus_test.cc. Goes to: SafetensorsReader, the parsers.
// Thread safety: one thread.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/io/memory_disk.h"
#include "common/safetensors/header.h"
#include "common/safetensors/index.h"
#include "common/safetensors/reader.h"

namespace ballast {
namespace {

bool Same(const TensorEntry& a, const TensorEntry& b) {
  return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape && a.begin == b.begin &&
         a.end == b.end;
}

void CheckSame(const SafetensorsHeader& a, const SafetensorsHeader& b) {
  BALLAST_CHECK(a.metadata == b.metadata);
  BALLAST_CHECK(a.tensors.size() == b.tensors.size());
  for (size_t i = 0; i < a.tensors.size(); ++i) BALLAST_CHECK(Same(a.tensors[i], b.tensors[i]));
}

// What was parsed is encoded, parsed to the same, and encoded to the same bytes again.
void RoundTrip(const SafetensorsHeader& header, uint64_t data_bytes) {
  const auto head = EncodeSafetensorsHeader(header.tensors, header.metadata, {});
  if (!head.ok()) {
    // The one thing that a parser takes and nobody writes: files that no disk can hold.
    BALLAST_CHECK(header.file_bytes() > INT64_MAX / 2);
    return;
  }
  CheckSame(head->header, header);
  const auto again = ParseSafetensorsHeader(absl::string_view(head->bytes).substr(8), data_bytes);
  BALLAST_CHECK(again.ok());
  CheckSame(*again, header);
  BALLAST_CHECK(again->data_offset == head->header.data_offset);
  const auto twice = EncodeSafetensorsHeader(again->tensors, again->metadata, {});
  BALLAST_CHECK(twice.ok() && twice->bytes == head->bytes);
}

void ReadAsFile(absl::string_view bytes) {
  MemoryDisk disk;
  {
    const auto file = disk.Open("m", {.mode = OpenMode::kCreate});
    BALLAST_CHECK(file.ok());
    BALLAST_CHECK((*file)->WriteAt(0, {ConstBytes{bytes.data(), bytes.size()}}).ok());
  }
  const auto reader = SafetensorsReader::Open(&disk, "m");
  if (!reader.ok()) return;
  const SafetensorsHeader& header = (*reader)->header();
  BALLAST_CHECK(header.file_bytes() == bytes.size());
  for (size_t i = 0; i < header.tensors.size(); ++i) {
    const TensorEntry& tensor = header.tensors[i];
    std::string data(tensor.bytes(), '\0');
    BALLAST_CHECK((*reader)->ReadAt(i, 0, data.size(), data.data()).ok());
    BALLAST_CHECK(data == bytes.substr(header.data_offset + tensor.begin, data.size()));
    BALLAST_CHECK(!(*reader)->ReadAt(i, 1, data.size(), data.data()).ok());
  }
  RoundTrip(header, bytes.size() - header.data_offset);
}

void ReadAsHeader(absl::string_view bytes) {
  uint64_t data_bytes = 0;
  if (bytes.size() < sizeof(data_bytes)) return;
  std::memcpy(&data_bytes, bytes.data(), sizeof(data_bytes));
  const auto header = ParseSafetensorsHeader(bytes.substr(sizeof(data_bytes)), data_bytes);
  if (header.ok()) RoundTrip(*header, data_bytes);
}

void ReadAsIndex(absl::string_view bytes) {
  const auto index = ParseSafetensorsIndex(bytes);
  if (!index.ok()) return;
  for (const auto& [name, file] : index->files) {
    BALLAST_CHECK(file.find('/') == std::string::npos && file != "..");
  }
  const auto json = EncodeSafetensorsIndex(*index);
  BALLAST_CHECK(json.ok());
  const auto again = ParseSafetensorsIndex(*json);
  BALLAST_CHECK(again.ok());
  BALLAST_CHECK(again->total_bytes == index->total_bytes && again->metadata == index->metadata &&
                again->files == index->files);
}

}  // namespace
}  // namespace ballast

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const absl::string_view input(reinterpret_cast<const char*>(data), bytes);
  ballast::ReadAsFile(input);
  ballast::ReadAsHeader(input);
  ballast::ReadAsIndex(input);
  return 0;
}
