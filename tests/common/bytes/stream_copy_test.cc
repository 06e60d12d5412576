// Tests of common/bytes/stream_copy.h.
#include "common/bytes/stream_copy.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>

namespace ballast {
namespace {

TEST(StreamCopyTest, CopiesExactlyTheBytesForAllLengthsAndAlignments) {
  std::string from(9000, '\0');
  std::iota(from.begin(), from.end(), static_cast<char>(1));
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{63}, size_t{4095}, size_t{4096}, size_t{4097},
                       size_t{4159}, size_t{8000}}) {
    for (size_t offset = 0; offset < 70; ++offset) {
      std::string to(offset + bytes + 2, 'x');
      StreamCopy(to.data() + offset + 1, from.data() + offset, bytes);
      ASSERT_EQ(to, std::string(offset + 1, 'x') + from.substr(offset, bytes) + "x")
          << bytes << " bytes, offset " << offset;
    }
  }
}

TEST(StreamCopyTest, OfNothingTakesNullPointers) { StreamCopy(nullptr, nullptr, 0); }

}  // namespace
}  // namespace ballast
