// Verdicts over certificates: the accepted ones, and the words of each mistake's refusal.
#include "common/tls/certificate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/x509_vfy.h>

#include <string>

#include "common/tls/client_faults.h"
#include "tests/common/tls/certificates.h"

namespace ballast {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr int64_t kNow = 1'700'000'000;
const TlsExpectation kServer0{TlsEnd::kServer, "spiffe://ballast/server/0"};

void ExpectRefused(const TlsFiles& files, const TlsExpectation& expected, absl::StatusCode code,
                   const std::string& begins, const std::string& says) {
  const absl::Status status = CheckTlsFiles(files, expected, kNow).status();
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), StartsWith(begins));
  EXPECT_THAT(std::string(status.message()), HasSubstr(says));
}

void ExpectNeverGood(const TlsFiles& files, const std::string& begins, const std::string& says) {
  ExpectRefused(files, kServer0, absl::StatusCode::kInvalidArgument, begins, says);
}

TEST(ClientFaults, AVerdictOfOpenSslIsOneOfThree) {
  EXPECT_EQ(ClientFaultOf(X509_V_ERR_CERT_HAS_EXPIRED), ClientFault::kExpired);
  EXPECT_EQ(ClientFaultOf(X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY),
            ClientFault::kUnknownAuthority);
  EXPECT_EQ(ClientFaultOf(X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN), ClientFault::kUnknownAuthority);
  EXPECT_EQ(ClientFaultOf(X509_V_ERR_INVALID_PURPOSE), ClientFault::kOther);
}

TEST(Certificate, AGoodSetIsDescribed) {
  const TestAuthority authority;
  CertificateWish wish;
  wish.not_before_s = kNow - 10;
  wish.not_after_s = kNow + 10;
  const auto facts = CheckTlsFiles(authority.Files(wish), kServer0, kNow);
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->subject, "CN=server-0");
  EXPECT_EQ(facts->uris, kServer0.uri.empty() ? std::vector<std::string>()
                                              : std::vector<std::string>{kServer0.uri});
  EXPECT_EQ(facts->not_before_s, kNow - 10);
  EXPECT_EQ(facts->not_after_s, kNow + 10);
  EXPECT_EQ(facts->ca_not_after_s, 4'000'000'000);
  EXPECT_EQ(facts->authorities, 1);
}

TEST(Certificate, AClientNeedsNoCertificateOfItsOwn) {
  const TestAuthority authority;
  const TlsFiles files{{"ca.pem", authority.pem()}, {}, {}};
  EXPECT_TRUE(CheckTlsFiles(files, {}, kNow).ok());
}

TEST(Certificate, DatesBoundTheUse) {
  const TestAuthority authority;
  CertificateWish wish;
  wish.not_after_s = kNow - 1;
  ExpectRefused(authority.Files(wish), kServer0, absl::StatusCode::kFailedPrecondition,
                "tls.pem: expired at 2023-11-14 22:13:19 UTC", "it is 2023-11-14 22:13:20 UTC");
  wish.not_after_s = kNow + 100;
  wish.not_before_s = kNow + 1;
  ExpectRefused(authority.Files(wish), kServer0, absl::StatusCode::kFailedPrecondition,
                "tls.pem: is not valid before 2023-11-14 22:13:21 UTC", "");
  const TestAuthority ended("Old CA", kNow - 1);
  ExpectRefused(ended.Files(), kServer0, absl::StatusCode::kFailedPrecondition,
                "ca.pem: the authority of tls.pem", "expired");
}

TEST(Certificate, AKeyOfAnotherCertificateIsRefused) {
  const TestAuthority authority;
  TlsFiles files = authority.Files();
  files.key.text = authority.Sign({}).key;
  ExpectNeverGood(files, "tls.key: is not the key of the certificate tls.pem", "replace both");
}

TEST(Certificate, AnAuthorityThatIsNotInTheFileIsRefused) {
  const TestAuthority authority;
  TlsFiles files = authority.Files();
  files.ca.text = TestAuthority("Another CA").pem();
  ExpectNeverGood(files, "tls.pem: does not lead to an authority in ca.pem as a server", "issuer");
  files.ca.text += authority.pem();
  EXPECT_TRUE(CheckTlsFiles(files, kServer0, kNow).ok());
}

TEST(Certificate, AClientsCertificateIsNoServers) {
  const TestAuthority authority;
  CertificateWish wish;
  wish.server = false;
  const TlsFiles files = authority.Files(wish);
  ExpectNeverGood(files, "tls.pem: does not lead to an authority in ca.pem as a server", "purpose");
  EXPECT_TRUE(CheckTlsFiles(files, {TlsEnd::kClient, ""}, kNow).ok());
}

TEST(Certificate, ThereIsExactlyOneUriNameAndItIsTheExpectedOne) {
  const TestAuthority authority;
  CertificateWish wish;
  wish.uris = {"spiffe://ballast/server/0", "spiffe://ballast/admin"};
  ExpectNeverGood(authority.Files(wish), "tls.pem: has 2 URI names", "\"spiffe://ballast/admin\"");
  wish.uris = {};
  ExpectNeverGood(authority.Files(wish), "tls.pem: has 0 URI names",
                  "exactly one, \"spiffe://ballast/server/0\"");
  wish.uris = {"spiffe://elsewhere/server/0"};
  ExpectNeverGood(authority.Files(wish), "tls.pem: has 1 URI names", "elsewhere");
  wish.uris = {"spiffe://ballast/server/1"};
  ExpectNeverGood(authority.Files(wish), "tls.pem: has 1 URI names", "server/1");
}

TEST(Certificate, FilesThatAreCutOffAtAnyByteAreRefused) {
  const TestAuthority authority;
  const TlsFiles whole = authority.Files();
  for (TlsFile TlsFiles::*file : {&TlsFiles::ca, &TlsFiles::certificate, &TlsFiles::key}) {
    const std::string text = (whole.*file).text;
    // The line feed at the end is not needed.
    for (size_t bytes = 0; bytes + 1 < text.size(); ++bytes) {
      TlsFiles cut = whole;
      (cut.*file).text = text.substr(0, bytes);
      const absl::Status status = CheckTlsFiles(cut, kServer0, kNow).status();
      ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bytes << " " << status;
      ASSERT_THAT(std::string(status.message()), StartsWith((whole.*file).path)) << bytes;
    }
  }
}

TEST(Certificate, AKeyWithAPasswordIsRefused) {
  const TestAuthority authority;
  TlsFiles files = authority.Files();
  files.key.text =
      "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
  ExpectNeverGood(files, "tls.key: holds no private key in PEM form without a password", "");
}

}  // namespace
}  // namespace ballast
