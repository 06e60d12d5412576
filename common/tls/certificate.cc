#include "common/tls/certificate.h"

#include <algorithm>
#include <ctime>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/text/names.h"
#include "common/tls/openssl_ptr.h"
#include "common/tls/pem.h"

namespace ballast {
namespace {

int64_t SecondsOf(const ASN1_TIME* time) {
  std::tm fields = {};
  return ASN1_TIME_to_tm(time, &fields) == 1 ? static_cast<int64_t>(timegm(&fields)) : 0;
}

std::string SubjectOf(const X509* certificate) {
  const OpenSslPtr<BIO> text(BIO_new(BIO_s_mem()));
  X509_NAME_print_ex(text.get(), X509_get_subject_name(certificate), 0,
                     XN_FLAG_RFC2253 & ~ASN1_STRFLGS_ESC_MSB);
  char* bytes = nullptr;
  const long count = BIO_get_mem_data(text.get(), &bytes);
  return std::string(bytes, static_cast<size_t>(std::max(count, 0L)));
}

std::vector<std::string> UrisOf(const X509* certificate) {
  std::vector<std::string> uris;
  const OpenSslPtr<GENERAL_NAMES> names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* text = name->d.uniformResourceIdentifier;
    uris.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                      static_cast<size_t>(ASN1_STRING_length(text)));
  }
  return uris;
}

absl::Status CheckDates(const TlsFile& file, const CertificateFacts& facts, int64_t now_s) {
  if (facts.not_after_s < now_s) {
    return absl::FailedPreconditionError(absl::StrCat(
        file.path, ": expired at ", UtcText(facts.not_after_s), "; it is ", UtcText(now_s)));
  }
  if (facts.not_before_s > now_s) {
    return absl::FailedPreconditionError(absl::StrCat(file.path, ": is not valid before ",
                                                      UtcText(facts.not_before_s), "; it is ",
                                                      UtcText(now_s)));
  }
  return absl::OkStatus();
}

absl::Status CheckNames(const TlsFile& file, const CertificateFacts& facts,
                        const TlsExpectation& expected) {
  if (expected.uri.empty()) return absl::OkStatus();
  if (facts.uris == std::vector<std::string>{expected.uri}) return absl::OkStatus();
  std::vector<std::string> quoted;
  for (const std::string& uri : facts.uris) quoted.push_back(Quoted(uri));
  return BadTlsFile(
      file, absl::StrCat("has ", facts.uris.size(), " URI names (", absl::StrJoin(quoted, ", "),
                         "); it must have exactly one, ", Quoted(expected.uri)));
}

// Whether the chain leads to an authority, for `end`.
absl::Status CheckChain(const TlsFiles& files, const Chain& chain, const Chain& authorities,
                        TlsEnd end, int64_t now_s) {
  const OpenSslPtr<X509_STORE> store(X509_STORE_new());
  for (const auto& authority : authorities) X509_STORE_add_cert(store.get(), authority.get());
  const OpenSslPtr<STACK_OF(X509)> between(sk_X509_new_null());
  for (size_t i = 1; i < chain.size(); ++i) sk_X509_push(between.get(), chain[i].get());
  const OpenSslPtr<X509_STORE_CTX> context(X509_STORE_CTX_new());
  X509_STORE_CTX_init(context.get(), store.get(), chain[0].get(), between.get());
  X509_STORE_CTX_set_purpose(
      context.get(), end == TlsEnd::kServer ? X509_PURPOSE_SSL_SERVER : X509_PURPOSE_SSL_CLIENT);
  X509_VERIFY_PARAM_set_time(X509_STORE_CTX_get0_param(context.get()), now_s);
  const bool good = X509_verify_cert(context.get()) == 1;
  const int error = X509_STORE_CTX_get_error(context.get());
  ERR_clear_error();
  if (good) return absl::OkStatus();
  const std::string words = X509_verify_cert_error_string(error);
  if (error == X509_V_ERR_CERT_HAS_EXPIRED || error == X509_V_ERR_CERT_NOT_YET_VALID) {
    return absl::FailedPreconditionError(
        absl::StrCat(files.ca.path, ": the authority of ", files.certificate.path, ": ", words));
  }
  return BadTlsFile(files.certificate,
                    absl::StrCat("does not lead to an authority in ", files.ca.path, " as a ",
                                 end == TlsEnd::kServer ? "server" : "client", ": ", words));
}

CertificateFacts FactsOf(const Chain& chain, const Chain& authorities) {
  CertificateFacts facts;
  facts.authorities = static_cast<int>(authorities.size());
  facts.ca_not_after_s = std::numeric_limits<int64_t>::max();
  for (const auto& authority : authorities) {
    facts.ca_not_after_s =
        std::min(facts.ca_not_after_s, SecondsOf(X509_get0_notAfter(authority.get())));
  }
  if (chain.empty()) return facts;
  facts.subject = SubjectOf(chain[0].get());
  facts.uris = UrisOf(chain[0].get());
  facts.not_after_s = std::numeric_limits<int64_t>::max();
  for (const auto& one : chain) {
    facts.not_before_s = std::max(facts.not_before_s, SecondsOf(X509_get0_notBefore(one.get())));
    facts.not_after_s = std::min(facts.not_after_s, SecondsOf(X509_get0_notAfter(one.get())));
  }
  return facts;
}

}  // namespace

absl::StatusOr<CertificateFacts> CheckTlsFiles(const TlsFiles& files,
                                               const TlsExpectation& expected, int64_t now_s) {
  BALLAST_ASSIGN_OR_RETURN(const Chain authorities, ParseCertificates(files.ca));
  if (files.certificate.path.empty()) return FactsOf({}, authorities);
  BALLAST_ASSIGN_OR_RETURN(const Chain chain, ParseCertificates(files.certificate));
  BALLAST_ASSIGN_OR_RETURN(const OpenSslPtr<EVP_PKEY> key, ParseKey(files.key));
  if (X509_check_private_key(chain[0].get(), key.get()) != 1) {
    ERR_clear_error();
    return BadTlsFile(files.key, absl::StrCat("is not the key of the certificate ",
                                              files.certificate.path, "; replace both together"));
  }
  const CertificateFacts facts = FactsOf(chain, authorities);
  BALLAST_RETURN_IF_ERROR(CheckDates(files.certificate, facts, now_s));
  BALLAST_RETURN_IF_ERROR(CheckNames(files.certificate, facts, expected));
  BALLAST_RETURN_IF_ERROR(CheckChain(files, chain, authorities, expected.end, now_s));
  return facts;
}

std::string UtcText(int64_t seconds) {
  const std::time_t time = static_cast<std::time_t>(seconds);
  std::tm fields = {};
  char text[64] = {};
  if (gmtime_r(&time, &fields) == nullptr) return absl::StrCat(seconds, " s");
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", &fields);
  return text;
}

}  // namespace ballast
