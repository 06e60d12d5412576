// ReadLanes: every piece is done once, with memory that is its own meanwhile.
#include "server/durability/records/read_lanes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "absl/strings/str_cat.h"

namespace ballast::server {
namespace {

constexpr size_t kBytes = 4096;

TEST(ReadLanes, EveryPieceIsDoneOnceInMemoryOfItsOwn) {
  for (const int lanes : {1, 2, 4}) {
    auto made = ReadLanes::Create(lanes, kBytes);
    ASSERT_TRUE(made.ok()) << made.status();
    std::vector<std::atomic<int>> done(200);
    std::atomic<int> spoiled{0};
    const absl::Status status = made->ForEach(200, [&](size_t i, const Arena& scratch) {
      std::fill_n(scratch.data(), kBytes, static_cast<char>(i));
      const auto own = std::count(scratch.data(), scratch.data() + kBytes, static_cast<char>(i));
      if (own != static_cast<ptrdiff_t>(kBytes)) ++spoiled;
      ++done[i];
      return absl::OkStatus();
    });
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(spoiled, 0);
    EXPECT_TRUE(std::all_of(done.begin(), done.end(), [](const auto& one) { return one == 1; }));
    EXPECT_TRUE(made->ForEach(0, [](size_t, const Arena&) { return absl::OkStatus(); }).ok());
  }
}

TEST(ReadLanes, TheErrorIsThatOfTheLowestPiece) {
  for (const int lanes : {1, 4}) {
    auto made = ReadLanes::Create(lanes, kBytes);
    ASSERT_TRUE(made.ok()) << made.status();
    const absl::Status status = made->ForEach(50, [](size_t i, const Arena&) {
      return i % 10 == 7 ? absl::DataLossError(absl::StrCat("piece ", i)) : absl::OkStatus();
    });
    EXPECT_EQ(status, absl::DataLossError("piece 7"));
  }
}

}  // namespace
}  // namespace ballast::server
