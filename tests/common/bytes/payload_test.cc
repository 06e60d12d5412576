// Tests of common/bytes/payload.h.
#include "common/bytes/payload.h"

#include <gtest/gtest.h>

namespace ballast {
namespace {

TEST(PayloadTest, EmptyOneHasNoBytes) {
  const Payload payload;
  EXPECT_EQ(payload.bytes(), 0u);
  EXPECT_EQ(payload.ToString(), "");
  EXPECT_EQ(payload.Crc32c(5), 5u);
  EXPECT_TRUE(Payload::FromString("").pieces().empty());
}

TEST(PayloadTest, PiecesReadAsOneString) {
  auto owner = std::make_shared<const std::string>("hello, world");
  const char* text = owner->data();
  const Payload payload({{text, 5}, {text, 0}, {nullptr, 0}, {text + 7, 5}}, owner);
  EXPECT_EQ(payload.bytes(), 10u);
  EXPECT_EQ(payload.ToString(), "helloworld");
}

TEST(PayloadTest, ChecksumIsThatOfTheWholeString) {
  const std::string text = "123456789";
  const Payload payload({{text.data(), 4}, {text.data() + 4, 5}}, nullptr);
  EXPECT_EQ(payload.Crc32c(), 0xE3069283u);
  EXPECT_EQ(payload.Crc32c(77), Crc32c(text.data(), text.size(), 77));
}

TEST(PayloadTest, CopiesShareTheOwnerUntilTheLastIsGone) {
  auto owner = std::make_shared<const std::string>("abc");
  const std::weak_ptr<const std::string> watch = owner;
  auto first = std::make_unique<Payload>(Payload::Pieces{{owner->data(), 3}}, std::move(owner));
  auto second = std::make_unique<Payload>(*first);
  EXPECT_EQ(second->pieces()[0].data, first->pieces()[0].data);
  first.reset();
  EXPECT_EQ(second->ToString(), "abc");
  EXPECT_FALSE(watch.expired());
  second.reset();
  EXPECT_TRUE(watch.expired());
}

TEST(PayloadTest, MovedPayloadKeepsItsBytes) {
  Payload payload = Payload::FromString(std::string(100, 'x'));
  const Payload moved = std::move(payload);
  EXPECT_EQ(moved.ToString(), std::string(100, 'x'));
}

}  // namespace
}  // namespace ballast
