#include "tools/environment.h"

#include <unistd.h>

namespace ballast::tools {

std::map<std::string, std::string> Environment() {
  std::map<std::string, std::string> all;
  for (char** one = environ; one != nullptr && *one != nullptr; ++one) {
    const std::string text = *one;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) all.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return all;
}

}  // namespace ballast::tools
