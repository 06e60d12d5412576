// The inputs that fuzzing keeps, out of the text that corpus.py writes: tests/fuzz/corpus.
// Comes from: the tests of this folder. Goes to: common/io. Thread safety: pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace ballast::fuzz {

// Name and bytes of each input of `target`, in the order of the names. Errors: NOT_FOUND where the
// target has no file, INVALID_ARGUMENT with the line that is no input.
absl::StatusOr<std::vector<std::pair<std::string, std::string>>> CorpusOf(
    const std::string& target);

}  // namespace ballast::fuzz
