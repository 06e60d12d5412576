// Changes protobuf messages by their schema, so that a changed message still parses and its numbers
// stand where limits are: what plain bytes reach in millions of runs, this reaches in hundreds.
// Comes from: targets. Goes to: protobuf's reflection. Thread safety: pure functions.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"
#include "tests/fuzz/fuzz_random.h"

namespace ballast::fuzz {

// Changes one field of `message` or of a message in it: a boundary integer, another string, a field
// set or cleared, an element of a list added, doubled, moved or taken out.
void MutateMessage(google::protobuf::Message* message, FuzzRandom* random);

// `bytes` with one to four such changes, as a message like `like`; now and then, and where they are
// no such message, with changed bytes instead.
std::string MutateSerialized(const google::protobuf::Message& like, absl::string_view bytes,
                             FuzzRandom* random);

}  // namespace ballast::fuzz
