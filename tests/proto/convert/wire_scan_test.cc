// ScanWire against protobuf itself: accepted messages are parsed within its estimate, and refused
// ones cost nothing.
#include "proto/convert/wire_scan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "ballast/v1/control.pb.h"
#include "ballast/v1/data.pb.h"
#include "common/base/reason.h"
#include "google/protobuf/struct.pb.h"

namespace ballast {
namespace {

using testing::HasSubstr;

// `text` in pieces of `bytes`, as a transport delivers it.
Payload InPieces(const std::string& text, size_t bytes) {
  auto owner = std::make_shared<const std::string>(text);
  Payload::Pieces pieces;
  for (size_t at = 0; at < owner->size(); at += bytes) {
    pieces.push_back({owner->data() + at, std::min(bytes, owner->size() - at)});
  }
  return Payload(std::move(pieces), owner);
}

v1::AttachRequest Manifest(int tensors, const std::string& prefix) {
  v1::AttachRequest request;
  request.mutable_protocol()->set_max(1);
  request.mutable_spec()->set_name("job");
  for (int i = 0; i < tensors; ++i) {
    v1::TensorSpec* tensor = request.mutable_spec()->add_tensors();
    tensor->set_name(prefix + std::to_string(i));
    tensor->add_shape(4096);
    tensor->add_shape(4096);
    tensor->set_dtype(v1::DTYPE_BF16);
    tensor->set_group(1);
    request.add_tensor_crc32c(static_cast<uint32_t>(i));
  }
  return request;
}

// The field `spec` of an AttachRequest with `count` empty tensors: two bytes each.
std::string EmptyTensors(size_t count) {
  std::string tensors;
  for (size_t i = 0; i < count; ++i) tensors += std::string("\x2a\x00", 2);
  std::string text(1, '\x12');
  for (size_t left = tensors.size(); true; left >>= 7) {
    text += static_cast<char>(left > 127 ? (left & 127) | 128 : left);
    if (left <= 127) break;
  }
  return text + tensors;
}

absl::StatusOr<size_t> Scan(const std::string& text) {
  return ScanWire(Payload::FromString(text), v1::AttachRequest());
}

TEST(WireScan, AManifestTakesNoMoreThanItsEstimate) {
  for (const char* prefix : {"t", "model.layers.self_attn."}) {
    const v1::AttachRequest request = Manifest(20000, prefix);
    const std::string text = request.SerializeAsString();
    const auto memory = Scan(text);
    ASSERT_TRUE(memory.ok()) << memory.status();
    v1::AttachRequest parsed;
    ASSERT_TRUE(ParseScanned(InPieces(text, 1000), &parsed).ok());
    EXPECT_EQ(parsed.SerializeAsString(), text);
    EXPECT_GE(*memory, parsed.SpaceUsedLong()) << prefix;
    EXPECT_LE(*memory, 2 * parsed.SpaceUsedLong()) << prefix;
  }
}

TEST(WireScan, AMillionTensorsPass) {
  const std::string text = Manifest(1'000'000, "model.layers.weight.").SerializeAsString();
  const auto memory = Scan(text);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_LE(*memory, WireMemoryMax(text.size()));
  v1::AttachRequest parsed;
  ASSERT_TRUE(ParseScanned(Payload::FromString(text), &parsed).ok());
  EXPECT_LE(parsed.SpaceUsedLong(), *memory);
  RecordProperty("bytes", std::to_string(text.size()));
  RecordProperty("memory", std::to_string(*memory));
  RecordProperty("parsed", std::to_string(parsed.SpaceUsedLong()));
}

TEST(WireScan, MoreElementsThanAManifestHasAreRefused) {
  std::string lists;  // Empty ones cost next to nothing, but time.
  for (size_t i = 0; i < kWireElementsMax; ++i) lists += std::string("\x32\x00", 2);
  EXPECT_TRUE(Scan(lists).ok());
  lists += std::string("\x32\x00", 2);
  EXPECT_THAT(std::string(Scan(lists).status().message()),
              HasSubstr("elements of field 6 of AttachRequest"));
}

TEST(WireScan, EmptySubmessagesAreRefusedByWhatTheyTake) {
  const std::string text = EmptyTensors(kWireElementsMax);
  const absl::Status refused = Scan(text).status();
  EXPECT_EQ(ReasonOf(refused), Reason::kBadFrame);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("takes more than"));
  EXPECT_TRUE(Scan(EmptyTensors(100'000)).ok());
}

TEST(WireScan, CutOffAtEveryByteItIsRefusedOrStillAMessage) {
  const std::string text = Manifest(2, "name.longer.than.fifteen").SerializeAsString();
  for (size_t n = 0; n <= text.size(); ++n) {
    const std::string cut = text.substr(0, n);
    v1::AttachRequest parsed;
    EXPECT_EQ(Scan(cut).ok(), parsed.ParseFromString(cut)) << n;
  }
}

TEST(WireScan, APieceMayEndInTheMiddleOfAField) {
  const std::string text = Manifest(50, "a").SerializeAsString();
  const auto whole = Scan(text);
  for (const size_t bytes : {1, 2, 3, 7}) {
    const auto memory = ScanWire(InPieces(text, bytes), v1::AttachRequest());
    ASSERT_TRUE(memory.ok()) << memory.status();
    EXPECT_EQ(*memory, *whole);
  }
}

TEST(WireScan, NestingAndGroupsAreRefused) {
  google::protobuf::Value value;  // A type that holds itself; none of ours does.
  google::protobuf::Value* inner = &value;
  for (int i = 0; i < 7; ++i) inner = inner->mutable_list_value()->add_values();
  EXPECT_TRUE(ScanWire(Payload::FromString(value.SerializeAsString()), value).ok());
  for (int i = 0; i < 2; ++i) inner = inner->mutable_list_value()->add_values();
  const auto deep = ScanWire(Payload::FromString(value.SerializeAsString()), value);
  EXPECT_THAT(std::string(deep.status().message()), HasSubstr("nested deeper than 16"));
  EXPECT_FALSE(Scan(std::string("\x0b\x0c", 2)).ok());
  EXPECT_FALSE(Scan(std::string("\x7b", 1)).ok());
}

TEST(WireScan, ALengthBeyondTheEndIsRefusedBeforeAnyAllocation) {
  EXPECT_FALSE(Scan(std::string("\x12\xff\xff\xff\xff\x07", 6)).ok());
  EXPECT_FALSE(Scan(std::string("\x12\x05\x0a\x03", 4)).ok());
}

TEST(WireScan, UnknownFieldsAndNumbersOneByOneCountToo) {
  std::string unknown;
  for (int i = 0; i < 1'000'000; ++i) unknown += std::string("\xf8\x07\x00", 3);
  const auto memory = Scan(unknown);
  ASSERT_TRUE(memory.ok());
  EXPECT_GE(*memory, 32'000'000u);
  for (int i = 0; i < 7'000'000; ++i) unknown += std::string("\xf8\x07\x00", 3);
  EXPECT_FALSE(Scan(unknown).ok());
}

TEST(WireScan, AFieldAloneIsReadWhereverItStands) {
  v1::AttachRequest request = Manifest(3, "a");
  std::string text = request.SerializeAsString();
  v1::ProtocolRange range;
  ASSERT_TRUE(ParseFieldAlone(InPieces(text, 5), 1, &range).ok());
  EXPECT_EQ(range.max(), 1u);
  v1::AttachRequest later;
  later.mutable_protocol()->set_max(7);
  text += later.SerializeAsString();
  range.Clear();
  ASSERT_TRUE(ParseFieldAlone(Payload::FromString(text), 1, &range).ok());
  EXPECT_EQ(range.max(), 7u);
  range.Clear();
  ASSERT_TRUE(ParseFieldAlone(Payload::FromString(""), 1, &range).ok());
  EXPECT_EQ(range.max(), 0u);
  EXPECT_FALSE(ParseFieldAlone(Payload::FromString("\x0a\xff\x01"), 1, &range).ok());
}

}  // namespace
}  // namespace ballast
