// Tests of server/durability/images/image_book.h alone: the versions covered by overlapping
// flushes. Their use in writes and reads is tested in image_file_test.cc.
#include "server/durability/images/image_book.h"

#include <gtest/gtest.h>

#include "tests/server/durability/images/image_testing.h"

namespace ballast::server {
namespace {

// Writes `version` of extent 7, and leaves it to a flush.
void Write(ImageBook* book, uint64_t version) {
  const auto header = book->BeginWrite(7, version);
  ASSERT_TRUE(header.ok()) << header.status();
  ASSERT_TRUE(book->EndWrite(*header, absl::OkStatus()).ok());
}

// Two flushes begin after version 1. The first one ends, and version 2 is being written when the
// second one ends: that one does not cover version 2.
TEST(ImageBook, WriteThatStartsDuringFlushStaysDirty) {
  ImageBook book("images", SmallImages(), {{.extent = 7, .elements = 64, .array_count = 1}});
  Write(&book, 1);
  const auto first = book.BeginSync();
  const auto second = book.BeginSync();
  ASSERT_TRUE(first.ok() && second.ok());
  ASSERT_TRUE(book.EndSync(*first, absl::OkStatus()).ok());
  EXPECT_FALSE(book.NeedsSync(7));
  const auto writing = book.BeginWrite(7, 2);
  ASSERT_TRUE(writing.ok()) << writing.status();
  ASSERT_TRUE(book.EndSync(*second, absl::OkStatus()).ok());
  EXPECT_TRUE(book.NeedsSync(7));
  ASSERT_TRUE(book.EndWrite(*writing, absl::OkStatus()).ok());
  EXPECT_TRUE(book.NeedsSync(7));
  EXPECT_EQ(book.Flushed(7), 1u);
}

}  // namespace
}  // namespace ballast::server
