// A target whose inputs are of several kinds: the first byte says which, the rest is the input.
// Comes from: the targets in this folder. Goes to: nothing. Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"
#include "tests/fuzz/fuzz_random.h"
#include "tests/fuzz/message_mutator.h"

namespace ballast::fuzz {

struct KindInput {
  size_t kind = 0;
  absl::string_view rest;
};

inline KindInput SplitKind(absl::string_view input, size_t kinds) {
  if (input.empty()) return {};
  return {static_cast<uint8_t>(input[0]) % kinds, input.substr(1)};
}
inline std::string JoinKind(size_t kind, absl::string_view rest) {
  std::string input(1, static_cast<char>(kind));
  input.append(rest.data(), rest.size());
  return input;
}
inline std::string JoinKind(size_t kind, const google::protobuf::Message& message) {
  return JoinKind(kind, message.SerializeAsString());
}

// `input` is of as many kinds as there are in `like`, and serialized as that one's message.
inline std::string MutateKind(const std::vector<const google::protobuf::Message*>& like,
                              const std::string& input, FuzzRandom* random) {
  const KindInput parts = SplitKind(input, like.size());
  return JoinKind(parts.kind, MutateSerialized(*like[parts.kind], parts.rest, random));
}

}  // namespace ballast::fuzz
