#include "tests/fuzz/corpus.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/io/file.h"

namespace ballast::fuzz {

absl::StatusOr<std::vector<std::pair<std::string, std::string>>> CorpusOf(
    const std::string& target) {
  constexpr size_t kFileBytesMax = 4 << 20;
  const std::string path = absl::StrCat(BALLAST_FUZZ_CORPUS, "/", target, ".txt");
  BALLAST_ASSIGN_OR_RETURN(const std::string text,
                           ReadWholeFile(PosixFileSystem(), path, kFileBytesMax));
  std::vector<std::pair<std::string, std::string>> inputs;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const size_t blank = line.find(' ');
    std::string bytes;
    if (blank == absl::string_view::npos || !absl::CUnescape(line.substr(blank + 1), &bytes)) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": no input: ", line));
    }
    inputs.emplace_back(line.substr(0, blank), std::move(bytes));
  }
  return inputs;
}

}  // namespace ballast::fuzz
