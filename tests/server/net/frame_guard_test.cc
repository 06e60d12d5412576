// FrameGuard over frames that are written by hand, and over any of them in any pieces.
#include "server/net/frame_guard.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "server/net/first_bytes.h"

namespace ballast::server {
namespace {

using std::chrono::nanoseconds;
using std::chrono::seconds;

enum Type : uint8_t {
  kData,
  kHeaders,
  kPriority,
  kReset,
  kSettings,
  kPush,
  kPing,
  kGoAway,
  kWindow,
  kContinuation
};

std::string Frame(uint8_t type, uint8_t flags, const std::string& payload) {
  const size_t length = payload.size();
  const std::string head = {static_cast<char>(length >> 16),
                            static_cast<char>(length >> 8),
                            static_cast<char>(length),
                            static_cast<char>(type),
                            static_cast<char>(flags),
                            0,
                            0,
                            0,
                            1};
  return head + payload;
}

std::string Preface() { return std::string(kHttp2Preface); }

std::string Times(int times, const std::string& frame) {
  std::string all;
  for (int i = 0; i < times; ++i) all += frame;
  return all;
}

std::optional<ConnectionRefusal> Judge(const std::string& bytes, nanoseconds now = seconds(1)) {
  return FrameGuard().Look(bytes, now);
}

TEST(FrameGuard, ACallPasses) {
  EXPECT_EQ(Judge(Preface() + Frame(kSettings, 0, "") + Frame(kHeaders, 4, std::string(500, 'h')) +
                  Frame(kData, 1, std::string(1 << 20, '\x01')) + Frame(kPing, 0, "12345678")),
            std::nullopt);
}

TEST(FrameGuard, HeadersEnd) {
  const std::string open = Preface() + Frame(kHeaders, 0, std::string(100, 'h'));
  EXPECT_EQ(Judge(open + Times(3, Frame(kContinuation, 0, std::string(16384, 'c')))), std::nullopt);
  EXPECT_EQ(Judge(open + Times(4, Frame(kContinuation, 0, std::string(16384, 'c')))),
            ConnectionRefusal::kHeaders);
  // Frames without a byte are not free, and one frame's head says enough.
  EXPECT_EQ(Judge(open + Times(8000, Frame(kContinuation, 0, ""))), ConnectionRefusal::kHeaders);
  EXPECT_EQ(Judge(Preface() + Frame(kHeaders, 4, std::string(70000, 'h')).substr(0, 9)),
            ConnectionRefusal::kHeaders);
  // A block that has ended counts no further.
  EXPECT_EQ(Judge(Preface() + Times(200, Frame(kHeaders, 4, std::string(8000, 'h')))),
            std::nullopt);
}

TEST(FrameGuard, ResetsAndControlsFillAgainWithTime) {
  for (const auto& [type, once, each_second, fault] :
       {std::make_tuple(kReset, 256, 64, ConnectionRefusal::kResets),
        std::make_tuple(kPing, 1024, 256, ConnectionRefusal::kControls),
        std::make_tuple(kSettings, 1024, 256, ConnectionRefusal::kControls),
        std::make_tuple(kPriority, 1024, 256, ConnectionRefusal::kControls)}) {
    const std::string frame = Frame(type, 0, "1234");
    FrameGuard guard;
    EXPECT_EQ(guard.Look(Preface() + Times(once, frame), seconds(1)), std::nullopt);
    EXPECT_EQ(guard.Look(Times(each_second, frame), seconds(2)), std::nullopt);
    EXPECT_EQ(guard.Look(frame, seconds(2)), fault);
    // A connection that has to end stays so.
    EXPECT_EQ(guard.Look(Frame(kData, 0, "x"), seconds(60)), fault);
  }
}

TEST(FrameGuard, LimitsFollowWhatTheServerAllows) {
  const FrameLimits small = FrameLimits::Of(8192, 64);
  EXPECT_EQ(small.header_block_bytes, 64u << 10);
  EXPECT_EQ(small.resets, 256);
  EXPECT_EQ(small.resets_per_second, 64);
  const FrameLimits large = FrameLimits::Of(1 << 20, 1024);
  EXPECT_EQ(large.header_block_bytes, 2u << 20);
  EXPECT_EQ(large.resets, 4096);
  EXPECT_EQ(large.resets_per_second, 1024);
}

TEST(FrameGuard, FramesOfACallsDataAreNotCounted) {
  EXPECT_EQ(Judge(Preface() + Times(100000, Frame(kWindow, 0, "1234") + Frame(kData, 0, ""))),
            std::nullopt);
}

// The same frames judged one by one, from whole heads.
std::optional<ConnectionRefusal> Reference(const std::vector<std::string>& frames) {
  int resets = 0;
  int controls = 0;
  size_t block = 0;
  for (const std::string& frame : frames) {
    const auto type = static_cast<uint8_t>(frame[3]);
    if (type == kHeaders) block = 0;
    if (type == kHeaders || type == kContinuation) {
      block += frame.size();
      if (block > 64 << 10) return ConnectionRefusal::kHeaders;
      if ((frame[4] & 4) != 0) block = 0;
    } else if (type == kReset) {
      if (++resets > 256) return ConnectionRefusal::kResets;
    } else if (type != kData && type != kWindow) {
      if (++controls > 1024) return ConnectionRefusal::kControls;
    }
  }
  return std::nullopt;
}

TEST(FrameGuard, AnySequenceInAnyPiecesIsJudgedFrameByFrame) {
  std::map<std::optional<ConnectionRefusal>, int> seen;
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    std::vector<std::string> frames;
    const auto favourite = static_cast<uint8_t>(random() % 12);  // some types do not exist
    const size_t count = random() % 2000;
    for (size_t i = 0; i < count; ++i) {
      const uint8_t type = random() % 3 == 0 ? static_cast<uint8_t>(random() % 12) : favourite;
      frames.push_back(Frame(
          type, static_cast<uint8_t>(random() % (seed % 2 == 0 ? 8 : 1000) == 0 ? random() : 0),
          std::string(random() % (seed % 5 == 0 ? 6000 : 200), static_cast<char>(random()))));
    }
    std::string bytes = Preface();
    for (const std::string& frame : frames) bytes += frame;
    FrameGuard guard;
    std::optional<ConnectionRefusal> found;
    for (size_t at = 0; at < bytes.size();) {
      const size_t piece = 1 + random() % (random() % 2 == 0 ? 5 : 5000);
      found = guard.Look(absl::string_view(bytes).substr(at, piece), seconds(1));
      at += piece;
    }
    ASSERT_EQ(found, Reference(frames)) << "seed " << seed;
    ++seen[found];
  }
  EXPECT_EQ(seen.size(), 4u) << "the sequences do not reach every fault";
}

}  // namespace
}  // namespace ballast::server
