// Target safetensors: files, headers and indexes. Accepted files survive a round trip, and a
// tensor's bytes are as many as its shape gives by other arithmetic. Each input is read in three
// ways: as a file; as a header whose first 8 bytes give the size of the data; as an index.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/io/memory_disk.h"
#include "common/safetensors/header.h"
#include "common/safetensors/index.h"
#include "common/safetensors/reader.h"
#include "tests/fuzz/byte_mutator.h"
#include "tests/fuzz/fuzz_target.h"

namespace ballast::fuzz {
namespace {

constexpr size_t kLengthBytes = sizeof(uint64_t);

constexpr char kHeaderSeed[] =
    R"({"__metadata__": {"format": "pt"},
 "b": {"dtype": "U8", "shape": [1], "data_offsets": [8, 9]},
 "a": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]},
 "none": {"dtype": "F32", "shape": [0, 64, 1024], "data_offsets": [9, 9]}})";
constexpr char kIndexSeed[] =
    R"({"metadata": {"total_size": 4, "x": "y"}, "weight_map": {"w": "a.safetensors"}})";

uint64_t Length(absl::string_view bytes) {
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  return length;
}

std::string LengthBytes(uint64_t length) {
  return std::string(reinterpret_cast<const char*>(&length), kLengthBytes);
}

// The product of the shape and the dtype's bytes is tensor.bytes(), by division alone.
void CheckBytes(const TensorEntry& tensor) {
  BALLAST_CHECK(tensor.bytes() % SafeDTypeBytes(tensor.dtype) == 0);
  uint64_t elements = tensor.bytes() / SafeDTypeBytes(tensor.dtype);
  for (const uint64_t dimension : tensor.shape) {
    if (dimension == 0) BALLAST_CHECK(tensor.bytes() == 0);
    if (dimension == 0) return;
    BALLAST_CHECK(elements % dimension == 0);
    elements /= dimension;
  }
  BALLAST_CHECK(elements == 1);
}

bool Same(const TensorEntry& a, const TensorEntry& b) {
  return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape && a.begin == b.begin &&
         a.end == b.end;
}

void CheckSame(const SafetensorsHeader& a, const SafetensorsHeader& b) {
  BALLAST_CHECK(a.metadata == b.metadata);
  BALLAST_CHECK(a.tensors.size() == b.tensors.size());
  for (size_t i = 0; i < a.tensors.size(); ++i) BALLAST_CHECK(Same(a.tensors[i], b.tensors[i]));
}

// The parsed header is encoded, parsed to the same, and encoded to the same bytes again.
void RoundTrip(const SafetensorsHeader& header, uint64_t data_bytes) {
  for (const TensorEntry& tensor : header.tensors) CheckBytes(tensor);
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
  if (bytes.size() < kLengthBytes) return;
  const auto header = ParseSafetensorsHeader(bytes.substr(kLengthBytes), Length(bytes));
  if (header.ok()) RoundTrip(*header, Length(bytes));
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

// Puts a boundary integer in place of one of the numbers.
std::string ChangeNumber(std::string text, FuzzRandom* random) {
  constexpr char kDigits[] = "0123456789";
  std::vector<size_t> begins;
  for (size_t at = 0; (at = text.find_first_of(kDigits, at)) != std::string::npos;) {
    begins.push_back(at);
    at = std::min(text.find_first_not_of(kDigits, at), text.size());
  }
  if (begins.empty()) return text;
  const size_t begin = begins[random->Below(begins.size())];
  const size_t end = std::min(text.find_first_not_of(kDigits, begin), text.size());
  uint64_t number = 0;
  (void)absl::SimpleAtoi(text.substr(begin, end - begin), &number);
  return text.replace(begin, end - begin, absl::StrCat(random->Boundary(number)));
}

class Safetensors : public FuzzTarget {
 public:
  std::vector<std::string> Seeds() const override {
    const std::string header = kHeaderSeed;
    return {LengthBytes(header.size()) + header + "012345678", LengthBytes(9) + header, kIndexSeed};
  }

  void Run(absl::string_view input) const override {
    ReadAsFile(input);
    ReadAsHeader(input);
    ReadAsIndex(input);
  }

  // The length in front of a file's header stays right, or half of all files would end there.
  std::string Mutate(const std::string& input, FuzzRandom* random) const override {
    if (random->OneIn(8)) return MutateBytes(input, words_, random);
    if (input.size() < kLengthBytes || input[0] == '{') return MutateText(input, random);
    const std::string rest = input.substr(kLengthBytes);
    if (Length(input) > rest.size())
      return input.substr(0, kLengthBytes) + MutateText(rest, random);
    const std::string text = MutateText(rest.substr(0, Length(input)), random);
    return LengthBytes(text.size()) + text + rest.substr(Length(input));
  }

 private:
  std::string MutateText(const std::string& text, FuzzRandom* random) const {
    if (random->OneIn(3)) return ChangeNumber(text, random);
    return random->OneIn(4) ? MutateBytes(text, words_, random)
                            : MutatePiece(text, " ,:{}[]\"", words_, random);
  }

  const std::vector<std::string> words_ = {"0",
                                           "1",
                                           "2",
                                           "9223372036854775808",
                                           "18446744073709551615",
                                           "4294967296",
                                           "-1",
                                           "1.0",
                                           "1e3",
                                           "dtype",
                                           "shape",
                                           "data_offsets",
                                           "U8",
                                           "F64",
                                           "BF16",
                                           "F4",
                                           "__metadata__",
                                           "weight_map",
                                           "metadata",
                                           "{",
                                           "}",
                                           "[",
                                           "]",
                                           ",",
                                           ":",
                                           "\"",
                                           "\\",
                                           "\\u0000",
                                           "\\ud83d\\ude00",
                                           "total_size",
                                           " ",
                                           "\n",
                                           "../",
                                           "\xff",
                                           ".safetensors",
                                           "true"};
};

}  // namespace

std::unique_ptr<FuzzTarget> SafetensorsTarget() { return std::make_unique<Safetensors>(); }

}  // namespace ballast::fuzz
