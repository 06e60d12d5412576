#include "tests/fuzz/message_mutator.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "google/protobuf/descriptor.h"
#include "tests/fuzz/byte_mutator.h"

namespace ballast::fuzz {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr int kElementsMax = 64;
constexpr int kDepthMax = 8;

double OtherDouble(double old, FuzzRandom* random) {
  constexpr double kChoices[] = {0,
                                 -0.0,
                                 1,
                                 -1,
                                 0.5,
                                 1e-300,
                                 1e300,
                                 std::numeric_limits<double>::infinity(),
                                 std::numeric_limits<double>::quiet_NaN(),
                                 std::numeric_limits<double>::denorm_min()};
  constexpr size_t kCount = sizeof(kChoices) / sizeof(kChoices[0]);
  if (!random->OneIn(3)) return kChoices[random->Below(kCount)];
  uint64_t bits = 0;
  std::memcpy(&bits, &old, sizeof(bits));
  bits ^= uint64_t{1} << random->Below(64);
  std::memcpy(&old, &bits, sizeof(bits));
  return old;
}

// Strings of proto3 are UTF-8, or protobuf refuses the message.
std::string OtherString(const FieldDescriptor* field, std::string old, FuzzRandom* random) {
  if (random->OneIn(4)) return std::string(random->Below(random->OneIn(4) ? 300 : 20), 'a');
  old = MutateBytes(std::move(old), {"/", "..", "default", " ", "\n"}, random);
  if (field->type() != FieldDescriptor::TYPE_STRING) return old;
  for (char& c : old) c = static_cast<char>(c & 0x7F);
  return old;
}

// Sets a single field, or element `index` of a list, to another value. Not for messages.
class ScalarChange {
 public:
  ScalarChange(Message* message, const FieldDescriptor* field, int index, FuzzRandom* random)
      : message_(message),
        reflection_(message->GetReflection()),
        field_(field),
        index_(index),
        random_(random) {}

  void Make() {
    switch (field_->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return Put(&R::GetInt32, &R::GetRepeatedInt32, &R::SetInt32, &R::SetRepeatedInt32);
      case FieldDescriptor::CPPTYPE_INT64:
        return Put(&R::GetInt64, &R::GetRepeatedInt64, &R::SetInt64, &R::SetRepeatedInt64);
      case FieldDescriptor::CPPTYPE_UINT32:
        return Put(&R::GetUInt32, &R::GetRepeatedUInt32, &R::SetUInt32, &R::SetRepeatedUInt32);
      case FieldDescriptor::CPPTYPE_UINT64:
        return Put(&R::GetUInt64, &R::GetRepeatedUInt64, &R::SetUInt64, &R::SetRepeatedUInt64);
      case FieldDescriptor::CPPTYPE_ENUM:
        return Put(&R::GetEnumValue, &R::GetRepeatedEnumValue, &R::SetEnumValue,
                   &R::SetRepeatedEnumValue);
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return PutDouble();
      case FieldDescriptor::CPPTYPE_BOOL:
        return PutBool();
      case FieldDescriptor::CPPTYPE_STRING:
        return PutString();
      default:  // Ours have no float; messages are another's.
        return;
    }
  }

 private:
  using R = google::protobuf::Reflection;

  template <typename T>
  void Put(T (R::*get)(const Message&, const FieldDescriptor*) const,
           T (R::*get_element)(const Message&, const FieldDescriptor*, int) const,
           void (R::*set)(Message*, const FieldDescriptor*, T) const,
           void (R::*set_element)(Message*, const FieldDescriptor*, int, T) const) {
    const bool list = field_->is_repeated();
    const T old = list ? (reflection_->*get_element)(*message_, field_, index_)
                       : (reflection_->*get)(*message_, field_);
    const auto value = static_cast<T>(random_->Boundary(static_cast<uint64_t>(old)));
    if (list) return (reflection_->*set_element)(message_, field_, index_, value);
    (reflection_->*set)(message_, field_, value);
  }

  void PutDouble() {
    if (field_->is_repeated()) {
      const double old = reflection_->GetRepeatedDouble(*message_, field_, index_);
      return reflection_->SetRepeatedDouble(message_, field_, index_, OtherDouble(old, random_));
    }
    const double old = reflection_->GetDouble(*message_, field_);
    reflection_->SetDouble(message_, field_, OtherDouble(old, random_));
  }

  void PutBool() {  // Ours are never in lists.
    if (field_->is_repeated()) return;
    reflection_->SetBool(message_, field_, !reflection_->GetBool(*message_, field_));
  }

  void PutString() {
    if (field_->is_repeated()) {
      const std::string old = reflection_->GetRepeatedString(*message_, field_, index_);
      return reflection_->SetRepeatedString(message_, field_, index_,
                                            OtherString(field_, old, random_));
    }
    const std::string old = reflection_->GetString(*message_, field_);
    reflection_->SetString(message_, field_, OtherString(field_, old, random_));
  }

  Message* const message_;
  const R* const reflection_;
  const FieldDescriptor* const field_;
  const int index_;
  FuzzRandom* const random_;
};

// Adds an empty element after the others, whatever the field's type.
void AddElement(Message* message, const FieldDescriptor* field) {
  const auto* reflection = message->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_MESSAGE:
      reflection->AddMessage(message, field);
      return;
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection->AddInt32(message, field, 0);
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection->AddInt64(message, field, 0);
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection->AddUInt32(message, field, 0);
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection->AddUInt64(message, field, 0);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection->AddDouble(message, field, 0);
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection->AddString(message, field, "");
    default:
      return;
  }
}

// Adds a copy of element `index` after the others.
void DoubleElement(Message* message, const FieldDescriptor* field, int index) {
  const auto* reflection = message->GetReflection();
  const std::unique_ptr<Message> copy(message->New());
  copy->CopyFrom(*message);
  reflection->SwapElements(copy.get(), field, 0, index);
  while (reflection->FieldSize(*copy, field) > 1) reflection->RemoveLast(copy.get(), field);
  // Of the copy that element alone is merged.
  std::vector<const FieldDescriptor*> set;
  reflection->ListFields(*copy, &set);
  for (const FieldDescriptor* other : set) {
    if (other != field) reflection->ClearField(copy.get(), other);
  }
  message->MergeFrom(*copy);
}

void ChangeList(Message* message, const FieldDescriptor* field, FuzzRandom* random) {
  const auto* reflection = message->GetReflection();
  const int count = reflection->FieldSize(*message, field);
  if (count == 0 || (random->OneIn(8) && count < kElementsMax)) return AddElement(message, field);
  const auto index = static_cast<int>(random->Below(static_cast<uint64_t>(count)));
  const bool scalars = field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE;
  switch (random->Below(scalars ? 8 : 3)) {
    case 0:
      reflection->SwapElements(message, field, index, count - 1);
      return reflection->RemoveLast(message, field);
    case 1:
      return reflection->SwapElements(
          message, field, index, static_cast<int>(random->Below(static_cast<uint64_t>(count))));
    case 2:
      if (count < kElementsMax) DoubleElement(message, field, index);
      return;
    default:
      return ScalarChange(message, field, index, random).Make();
  }
}

// A field that a change may be made to; null: any of the message's, set or not.
struct Place {
  Message* message = nullptr;
  const FieldDescriptor* field = nullptr;
};

// Every field that is set in the message and those in it, so that deep ones are as likely as
// others.
void CollectPlaces(Message* message, int depth, std::vector<Place>* places) {
  const auto* reflection = message->GetReflection();
  places->push_back({message, nullptr});
  std::vector<const FieldDescriptor*> set;
  reflection->ListFields(*message, &set);
  for (const FieldDescriptor* field : set) {
    places->push_back({message, field});
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || depth == kDepthMax) continue;
    if (!field->is_repeated()) {
      CollectPlaces(reflection->MutableMessage(message, field), depth + 1, places);
      continue;
    }
    for (int i = 0; i < reflection->FieldSize(*message, field); ++i) {
      CollectPlaces(reflection->MutableRepeatedMessage(message, field, i), depth + 1, places);
    }
  }
}

}  // namespace

void MutateMessage(Message* message, FuzzRandom* random) {
  std::vector<Place> places;
  CollectPlaces(message, 0, &places);
  Place place = places[random->Below(places.size())];
  const auto* type = place.message->GetDescriptor();
  if (type->field_count() == 0) return;
  if (place.field == nullptr) {
    const auto count = static_cast<uint64_t>(type->field_count());
    place.field = type->field(static_cast<int>(random->Below(count)));
  }
  if (place.field->is_repeated()) return ChangeList(place.message, place.field, random);
  const auto* reflection = place.message->GetReflection();
  const bool single_message = place.field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
  const bool set = reflection->HasField(*place.message, place.field);
  if (set && random->OneIn(single_message ? 4 : 12)) {
    reflection->ClearField(place.message, place.field);
  } else if (single_message) {
    reflection->MutableMessage(place.message, place.field);  // There now, if it was not.
  } else {
    ScalarChange(place.message, place.field, 0, random).Make();
  }
}

std::string MutateSerialized(const Message& like, absl::string_view bytes, FuzzRandom* random) {
  const std::unique_ptr<Message> message(like.New());
  if (random->OneIn(8) || !message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return MutateBytes(std::string(bytes), {}, random);
  }
  const uint64_t changes = 1 + random->Below(4);
  for (uint64_t i = 0; i < changes; ++i) MutateMessage(message.get(), random);
  return message->SerializeAsString();
}

}  // namespace ballast::fuzz
