// How the first bytes of a connection are classified, cut off at every byte.
#include "server/net/first_bytes.h"

#include <gtest/gtest.h>

#include <string>

namespace ballast::server {
namespace {

const std::string kTlsHello("\x16\x03\x01\x02\x00\x01\x00", 7);

TEST(FirstBytes, AClientOfThePortIsGoodOnceItsPrefaceIsWhole) {
  const std::string preface(kHttp2Preface);
  ASSERT_EQ(preface.size(), kFirstBytesMax);
  for (size_t n = 0; n < preface.size(); ++n) {
    EXPECT_EQ(JudgeFirstBytes(preface.substr(0, n), false).opening, Opening::kMore) << n;
  }
  EXPECT_EQ(JudgeFirstBytes(preface, false).opening, Opening::kGood);
  EXPECT_EQ(JudgeFirstBytes(kTlsHello.substr(0, 1), true).opening, Opening::kMore);
  EXPECT_EQ(JudgeFirstBytes(kTlsHello.substr(0, 2), true).opening, Opening::kGood);
}

struct Row {
  std::string bytes;
  bool tls;
  ConnectionRefusal refusal;
};

TEST(FirstBytes, EverythingElseIsRefusedByName) {
  const Row rows[] = {
      {std::string(kHttp2Preface), true, ConnectionRefusal::kPlaintext},
      {kTlsHello, false, ConnectionRefusal::kTls},
      {"GET / HTTP/1.1\r\n", false, ConnectionRefusal::kHttp1},
      {"GET / HTTP/1.1\r\n", true, ConnectionRefusal::kHttp1},
      {"POST /x", false, ConnectionRefusal::kHttp1},
      {std::string(1, '\0'), false, ConnectionRefusal::kGarbage},
      {"SSH-2.0-OpenSSH", true, ConnectionRefusal::kGarbage},
      {"PRI * HTTP/2.1\r\n", false, ConnectionRefusal::kGarbage},
      {"\x16\x02", true, ConnectionRefusal::kGarbage},
  };
  for (const Row& row : rows) {
    const FirstBytes first = JudgeFirstBytes(row.bytes, row.tls);
    EXPECT_EQ(first.opening, Opening::kBad) << row.bytes;
    EXPECT_EQ(first.refusal, row.refusal) << row.bytes;
  }
}

TEST(FirstBytes, AMethodThatIsNotWholeYetMayBecomeOne) {
  EXPECT_EQ(JudgeFirstBytes("P", false).opening, Opening::kMore);
  EXPECT_EQ(JudgeFirstBytes("POS", false).opening, Opening::kMore);
  EXPECT_EQ(JudgeFirstBytes("DELETE", false).opening, Opening::kMore);
}

}  // namespace
}  // namespace ballast::server
