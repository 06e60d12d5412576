#include "proto/convert/wire_scan.h"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream.h"
#include "google/protobuf/message.h"
#include "google/protobuf/wire_format_lite.h"
#include "proto/convert/frame_fields.h"

namespace ballast {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MessageFactory;
using google::protobuf::MessageLite;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// Overhead of the allocator on a block, and of a growing repeated field on a pointer.
constexpr size_t kBlockBytes = 16;
constexpr size_t kElementBytes = 16;
// A string object; one of up to 15 bytes has no block of its own.
constexpr size_t kStringBytes = 32;
constexpr size_t kShortString = 15;
// A number of a repeated field, which grows by doubling.
constexpr size_t kNumberBytes = 16;
// Of a message read alone.
constexpr int kFieldAloneMax = 4096;
// An unknown field.
constexpr size_t kUnknownBytes = 32;

// The pieces of a payload, one after the other.
class PiecesStream : public google::protobuf::io::ZeroCopyInputStream {
 public:
  explicit PiecesStream(const Payload& bytes) : pieces_(bytes.pieces()) {}

  bool Next(const void** data, int* size) override {
    while (next_ < pieces_.size() && offset_ == pieces_[next_].bytes) {
      ++next_;
      offset_ = 0;
    }
    if (next_ == pieces_.size()) return false;
    *data = pieces_[next_].data + offset_;
    *size = static_cast<int>(pieces_[next_].bytes - offset_);
    offset_ = pieces_[next_].bytes;
    count_ += *size;
    return true;
  }
  void BackUp(int count) override {
    offset_ -= static_cast<size_t>(count);
    count_ -= count;
  }
  bool Skip(int count) override {
    const void* data = nullptr;
    int size = 0;
    while (count > 0 && Next(&data, &size)) {
      if (size > count) BackUp(size - count);
      count -= std::min(size, count);
    }
    return count == 0;
  }
  int64_t ByteCount() const override { return count_; }

 private:
  const Payload::Pieces& pieces_;
  size_t next_ = 0;
  size_t offset_ = 0;
  int64_t count_ = 0;
};

class WireScanner {
 public:
  WireScanner(CodedInputStream* in, size_t bytes) : in_(in), bytes_(bytes) {}

  absl::Status Fields(const Descriptor& type, int depth);
  size_t memory() const { return memory_; }

 private:
  absl::Status Field(const Descriptor& type, uint32_t tag, int depth);
  absl::Status Delimited(const FieldDescriptor* field, int depth);
  absl::Status Packed(const FieldDescriptor& field, int length);
  absl::Status Number(const FieldDescriptor* field, int wire_type);
  absl::Status Take(size_t memory);
  size_t SizeOf(const Descriptor& type);

  CodedInputStream* const in_;
  const size_t bytes_;
  size_t memory_ = 0;
  std::unordered_map<const Descriptor*, size_t> sizes_;
};

absl::Status Cut() { return BadFrame("a field ends in the middle"); }

absl::Status WireScanner::Take(size_t memory) {
  memory_ += memory;
  const size_t limit = WireMemoryMax(bytes_);
  if (memory_ <= limit) return absl::OkStatus();
  return BadFrame(absl::StrCat("a message of ", bytes_, " bytes takes more than ", limit,
                               " in memory; send fewer elements"));
}

size_t WireScanner::SizeOf(const Descriptor& type) {
  const auto [found, is_new] = sizes_.try_emplace(&type, 0);
  if (is_new) {
    const Message* like = MessageFactory::generated_factory()->GetPrototype(&type);
    BALLAST_CHECK(like != nullptr);
    found->second = like->SpaceUsedLong() + kBlockBytes;
  }
  return found->second;
}

absl::Status WireScanner::Fields(const Descriptor& type, int depth) {
  if (depth > kWireDepthMax) {
    return BadFrame(absl::StrCat("messages nested deeper than ", kWireDepthMax));
  }
  // Of the field that came last: the elements of a repeated one usually stand together.
  int last = 0;
  size_t elements = 0;
  for (uint32_t tag = in_->ReadTag(); tag != 0; tag = in_->ReadTag()) {
    const int number = WireFormatLite::GetTagFieldNumber(tag);
    elements = number == last ? elements + 1 : 1;
    last = number;
    const bool one_by_one =
        WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
    if (one_by_one && elements > kWireElementsMax) {
      return BadFrame(absl::StrCat("more than ", kWireElementsMax, " elements of field ", number,
                                   " of ", type.name()));
    }
    BALLAST_RETURN_IF_ERROR(Field(type, tag, depth));
  }
  return in_->ConsumedEntireMessage() ? absl::OkStatus() : Cut();
}

absl::Status WireScanner::Field(const Descriptor& type, uint32_t tag, int depth) {
  const int wire_type = WireFormatLite::GetTagWireType(tag);
  const FieldDescriptor* field = type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
  if (wire_type == WireFormatLite::WIRETYPE_LENGTH_DELIMITED) return Delimited(field, depth);
  return Number(field, wire_type);
}

absl::Status WireScanner::Number(const FieldDescriptor* field, int wire_type) {
  uint64_t wide = 0;
  uint32_t narrow = 0;
  bool read = false;
  if (wire_type == WireFormatLite::WIRETYPE_VARINT) {
    read = in_->ReadVarint64(&wide);
  } else if (wire_type == WireFormatLite::WIRETYPE_FIXED64) {
    read = in_->ReadLittleEndian64(&wide);
  } else if (wire_type == WireFormatLite::WIRETYPE_FIXED32) {
    read = in_->ReadLittleEndian32(&narrow);
  } else {
    return BadFrame("a field of a kind that no message here has");
  }
  if (!read) return Cut();
  if (field == nullptr) return Take(kUnknownBytes);
  return Take(field->is_repeated() ? kNumberBytes : 0);
}

absl::Status WireScanner::Delimited(const FieldDescriptor* field, int depth) {
  int length = 0;
  if (!in_->ReadVarintSizeAsInt(&length)) return Cut();
  if (length > in_->BytesUntilLimit()) return Cut();
  if (field != nullptr && field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
    BALLAST_RETURN_IF_ERROR(
        Take(SizeOf(*field->message_type()) + (field->is_repeated() ? kElementBytes : 0)));
    const CodedInputStream::Limit before = in_->PushLimit(length);
    BALLAST_RETURN_IF_ERROR(Fields(*field->message_type(), depth + 1));
    in_->PopLimit(before);
    return absl::OkStatus();
  }
  if (field != nullptr && field->is_packable()) return Packed(*field, length);
  const auto bytes = static_cast<size_t>(length);
  const size_t place = field == nullptr ? kUnknownBytes : field->is_repeated() ? kElementBytes : 0;
  BALLAST_RETURN_IF_ERROR(
      Take(place + kStringBytes + kBlockBytes + (bytes > kShortString ? bytes + kBlockBytes : 0)));
  return in_->Skip(length) ? absl::OkStatus() : Cut();
}

absl::Status WireScanner::Packed(const FieldDescriptor& field, int length) {
  using Type = FieldDescriptor::CppType;
  const Type type = field.cpp_type();
  const auto wire =
      WireFormatLite::WireTypeForFieldType(static_cast<WireFormatLite::FieldType>(field.type()));
  if (wire != WireFormatLite::WIRETYPE_VARINT) {
    BALLAST_RETURN_IF_ERROR(Take(kBlockBytes + static_cast<size_t>(length)));
    return in_->Skip(length) ? absl::OkStatus() : Cut();
  }
  const bool wide =
      type == FieldDescriptor::CPPTYPE_INT64 || type == FieldDescriptor::CPPTYPE_UINT64;
  const CodedInputStream::Limit before = in_->PushLimit(length);
  size_t elements = 0;
  for (uint64_t value = 0; in_->BytesUntilLimit() > 0; ++elements) {
    if (!in_->ReadVarint64(&value)) return Cut();
  }
  in_->PopLimit(before);
  // It grows by doubling.
  return Take(kBlockBytes + elements * (wide ? 16 : 8));
}

const Descriptor& TypeOf(const MessageLite& like) {
  const auto* const full = dynamic_cast<const Message*>(&like);
  BALLAST_CHECK(full != nullptr);  // None of ours is of the lite kind.
  return *full->GetDescriptor();
}

absl::Status NoSuchMessage(const MessageLite& message) {
  return BadFrame(absl::StrCat("not a ", message.GetTypeName()));
}

}  // namespace

absl::StatusOr<size_t> ScanWire(const Payload& bytes, const MessageLite& like) {
  PiecesStream stream(bytes);
  CodedInputStream in(&stream);
  in.PushLimit(static_cast<int>(bytes.bytes()));
  WireScanner scanner(&in, bytes.bytes());
  BALLAST_RETURN_IF_ERROR(scanner.Fields(TypeOf(like), 1));
  return scanner.memory();
}

absl::Status ParseFieldAlone(const Payload& bytes, int number, MessageLite* field) {
  PiecesStream stream(bytes);
  CodedInputStream in(&stream);
  in.PushLimit(static_cast<int>(bytes.bytes()));
  for (uint32_t tag = in.ReadTag(); tag != 0; tag = in.ReadTag()) {
    const bool wanted =
        tag == WireFormatLite::MakeTag(number, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
    if (!wanted) {
      if (!WireFormatLite::SkipField(&in, tag)) return Cut();
      continue;
    }
    int length = 0;
    if (!in.ReadVarintSizeAsInt(&length) || length > kFieldAloneMax) return Cut();
    std::string text;
    if (!in.ReadString(&text, length)) return Cut();
    if (!field->MergeFromString(text)) return NoSuchMessage(*field);
  }
  return in.ConsumedEntireMessage() ? absl::OkStatus() : Cut();
}

absl::Status ParseScanned(const Payload& bytes, MessageLite* message) {
  PiecesStream stream(bytes);
  return message->ParseFromZeroCopyStream(&stream) ? absl::OkStatus() : NoSuchMessage(*message);
}

}  // namespace ballast
