#include "tests/fuzz/byte_mutator.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace ballast::fuzz {
namespace {

// A piece of at most `longest` bytes of `bytes`.
struct Piece {
  size_t at = 0;
  size_t length = 0;
};
Piece ChoosePiece(const std::string& bytes, size_t longest, FuzzRandom* random) {
  const size_t at = random->Below(bytes.size());
  return {at, 1 + random->Below(std::min(longest, bytes.size() - at))};
}

void InsertWord(const std::vector<std::string>& words, std::string* bytes, FuzzRandom* random) {
  if (words.empty()) return;
  const std::string& word = words[random->Below(words.size())];
  const size_t at = random->Below(bytes->size() + 1);
  const size_t over = random->OneIn(2) ? std::min(word.size(), bytes->size() - at) : 0;
  bytes->replace(at, over, word);
}

void MovePiece(std::string* bytes, FuzzRandom* random) {
  const Piece piece = ChoosePiece(*bytes, 64, random);
  const std::string moved = bytes->substr(piece.at, piece.length);
  if (random->OneIn(2)) bytes->erase(piece.at, piece.length);
  bytes->insert(random->Below(bytes->size() + 1), moved);
}

void ChangeOnce(const std::vector<std::string>& words, std::string* bytes, FuzzRandom* random) {
  const uint64_t choice = random->Below(bytes->empty() ? 2 : 7);
  if (choice == 0) return InsertWord(words, bytes, random);
  if (choice == 1) {
    bytes->insert(random->Below(bytes->size() + 1), 1, static_cast<char>(random->Next()));
  } else if (choice == 2) {
    (*bytes)[random->Below(bytes->size())] ^= static_cast<char>(1u << random->Below(8));
  } else if (choice == 3) {
    const Piece piece = ChoosePiece(*bytes, 32, random);
    bytes->erase(piece.at, piece.length);
  } else if (choice == 4) {
    MovePiece(bytes, random);
  } else {
    MutateNumber(bytes, random);
  }
}

}  // namespace

void MutateNumber(std::string* bytes, FuzzRandom* random) {
  size_t size = size_t{1} << random->Below(4);
  while (size > bytes->size()) size /= 2;
  if (size == 0) return;
  const size_t at = random->Below(bytes->size() / size) * size;
  uint64_t number = 0;
  std::memcpy(&number, bytes->data() + at, size);
  number = random->Boundary(number);
  std::memcpy(bytes->data() + at, &number, size);
}

std::string MutateBytes(std::string bytes, const std::vector<std::string>& words,
                        FuzzRandom* random) {
  const uint64_t changes = 1 + random->Below(4);
  for (uint64_t i = 0; i < changes; ++i) ChangeOnce(words, &bytes, random);
  return bytes;
}

std::string MutatePiece(std::string text, absl::string_view separators,
                        const std::vector<std::string>& words, FuzzRandom* random) {
  std::vector<size_t> ends;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i == text.size() || separators.find(text[i]) != absl::string_view::npos) ends.push_back(i);
  }
  const size_t chosen = random->Below(ends.size());
  const size_t begin = chosen == 0 ? 0 : ends[chosen - 1] + 1;
  const size_t length = ends[chosen] - begin;
  const std::string& word = words[random->Below(words.size())];
  switch (random->Below(5)) {
    case 0:
      return text.replace(begin, length, word);
    case 1:
      return text.insert(begin, word);
    case 2:
      return text.insert(begin + length, word);
    case 3:
      return text.insert(begin, text.substr(begin, length));
    default:
      return text.erase(begin, length);
  }
}

}  // namespace ballast::fuzz
