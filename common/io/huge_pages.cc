#include "common/io/huge_pages.h"

#include <fstream>

namespace ballast {

std::string HugePageMode() {
  std::string line;
  std::getline(std::ifstream(kHugePagesFile), line);
  return ChosenWord(line);
}

std::string ChosenWord(const std::string& line) {
  const size_t begin = line.find('[');
  const size_t end = line.find(']');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return "";
  return line.substr(begin + 1, end - begin - 1);
}

}  // namespace ballast
