// How much memory hostile headers take: this program counts what operator new hands out.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <new>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/safetensors/header.h"
#include "common/safetensors/index.h"

namespace {

std::atomic<size_t> bytes_now{0};
std::atomic<size_t> bytes_peak{0};

void* Take(size_t bytes) {
  void* const memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  const size_t now = bytes_now += malloc_usable_size(memory);
  size_t peak = bytes_peak;
  while (peak < now && !bytes_peak.compare_exchange_weak(peak, now)) {
  }
  return memory;
}

void Give(void* memory) noexcept {
  bytes_now -= malloc_usable_size(memory);
  std::free(memory);
}

}  // namespace

void* operator new(size_t bytes) { return Take(bytes); }
void* operator new[](size_t bytes) { return Take(bytes); }
void operator delete(void* memory) noexcept { Give(memory); }
void operator delete[](void* memory) noexcept { Give(memory); }
void operator delete(void* memory, size_t /*bytes*/) noexcept { Give(memory); }
void operator delete[](void* memory, size_t /*bytes*/) noexcept { Give(memory); }

namespace ballast {
namespace {

constexpr size_t kHeaderBytes = 2'000'000;
constexpr size_t kFactor = 16;  // As header.h says.

// `begin`, then item(0), item(1) ... joined by commas up to about kHeaderBytes, then `end`.
std::string Filled(const std::string& begin, const std::string& end,
                   const std::function<std::string(size_t)>& item, size_t count_max = SIZE_MAX) {
  std::string json = begin;
  for (size_t i = 0; json.size() < kHeaderBytes && i < count_max; ++i) {
    if (i > 0) json += ",";
    json += item(i);
  }
  return json + end;
}

// The most memory that `work` held at a time, above the amount held before.
size_t PeakBytes(const std::function<void()>& work) {
  const size_t before = bytes_now;
  bytes_peak = before;
  work();
  return bytes_peak - before;
}

void ExpectBounded(const std::string& json, bool ok) {
  const size_t header = PeakBytes([&] { EXPECT_EQ(ParseSafetensorsHeader(json, 0).ok(), ok); });
  EXPECT_LE(header, kFactor * json.size()) << json.substr(0, 80);
  ::testing::Test::RecordProperty("factor", absl::StrCat(header / json.size()));
}

std::string EmptyTensor(const std::string& name, const std::string& shape) {
  return absl::StrCat("\"", name, "\":{\"dtype\":\"U8\",\"shape\":[", shape,
                      "],\"data_offsets\":[0,0]}");
}

TEST(SafetensorsMemory, TheCounterSeesWhatIsTaken) {
  EXPECT_GE(PeakBytes([] { std::string(1'000'000, 'x').push_back('y'); }), 1'000'000u);
}

TEST(SafetensorsMemory, ManySmallTensorsAreBounded) {
  ExpectBounded(
      Filled("{", "}", [](size_t i) { return EmptyTensor(absl::StrCat(absl::Hex(i)), "0"); }),
      true);
}

TEST(SafetensorsMemory, ManyDimensionsAreBounded) {
  std::string shape = "0";
  for (int i = 1; i < 64; ++i) shape += ",0";
  ExpectBounded(
      Filled("{", "}", [&](size_t i) { return EmptyTensor(absl::StrCat(absl::Hex(i)), shape); }),
      true);
  ExpectBounded(Filled("{\"w\":{\"shape\":[", "]}}", [](size_t) { return "0"; }), false);
}

TEST(SafetensorsMemory, ManyKeysOfMetadataAreBounded) {
  const auto key = [](size_t i) { return absl::StrCat("\"", absl::Hex(i), "\":\"\""); };
  ExpectBounded(Filled("{\"__metadata__\":{", "}}", key, 65'536), true);
  ExpectBounded(Filled("{\"__metadata__\":{", "}}", key), false);
}

TEST(SafetensorsMemory, LongStringsAreBounded) {
  const std::string text(kHeaderBytes, 'x');
  ExpectBounded(absl::StrCat("{\"", text, "\":{}}"), false);
  ExpectBounded(absl::StrCat("{\"__metadata__\":{\"k\":\"", text, "\"}}"), true);
  ExpectBounded(absl::StrCat("{\"w\":{\"dtype\":\"", text, "\"}}"), false);
  ExpectBounded(absl::StrCat("{\"", text, "\n}"), false);
  ExpectBounded(absl::StrCat("{\"w\":", std::string(kHeaderBytes, '1'), "}"), false);
}

TEST(SafetensorsMemory, NestingIsBounded) {
  ExpectBounded(absl::StrCat("{\"w\":", std::string(kHeaderBytes, '['), "}"), false);
}

TEST(SafetensorsMemory, AnIndexIsBounded) {
  const std::string json = Filled("{\"weight_map\":{", "}}", [](size_t i) {
    return absl::StrCat("\"", absl::Hex(i), "\":\".safetensors\"");
  });
  EXPECT_LE(PeakBytes([&] { EXPECT_TRUE(ParseSafetensorsIndex(json).ok()); }),
            kFactor * json.size());
}

}  // namespace
}  // namespace ballast
