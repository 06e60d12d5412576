// Changes byte strings that have no schema: boundary integers in place of numbers, words of the
// format, pieces taken out, doubled or moved.
// Comes from: targets. Goes to: nothing. Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/fuzz/fuzz_random.h"

namespace ballast::fuzz {

// Puts a boundary integer of 1, 2, 4 or 8 bytes, little-endian, over one at a multiple of its
// size. An empty string stays empty.
void MutateNumber(std::string* bytes, FuzzRandom* random);

// One to four changes. `words`: words with a meaning in the format; may be empty.
std::string MutateBytes(std::string bytes, const std::vector<std::string>& words,
                        FuzzRandom* random);

// Of text: changes one of the pieces between `separators`. It becomes a word, gets one before or
// after it, is doubled, or goes.
std::string MutatePiece(std::string text, absl::string_view separators,
                        const std::vector<std::string>& words, FuzzRandom* random);

}  // namespace ballast::fuzz
