// Target authz: identities as certificates have them, the token file, and the deny-list. An
// identity that is taken has one spelling; a file that is taken has an entry for each of its lines.
// A file of quotas per tenant belongs here, too.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/security/entries.h"
#include "common/security/identity.h"
#include "common/security/tokens.h"
#include "server/security/denied.h"
#include "tests/fuzz/byte_mutator.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/kinds.h"

namespace ballast::fuzz {
namespace {

constexpr char kDomain[] = "example.org";
constexpr char kToken[] = "secret";

enum Kind : size_t { kUri, kUris, kTokens, kDenied, kKinds };

std::string Uri(absl::string_view path) { return absl::StrCat("spiffe://", kDomain, "/", path); }

std::string TokenLine(absl::string_view token, absl::string_view path) {
  const TokenHash hash = HashToken(token);
  const absl::string_view bytes(reinterpret_cast<const char*>(hash.data()), hash.size());
  return absl::StrCat("sha256:", absl::BytesToHexString(bytes), " ", Uri(path), "\n");
}

// A message stands in a log: no input may break its line.
void CheckRefusal(const absl::Status& status) {
  BALLAST_CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  for (const char c : status.message()) BALLAST_CHECK(static_cast<unsigned char>(c) >= 0x20);
  BALLAST_CHECK(status.message().size() < 4096);
}

void RunUri(absl::string_view uri) {
  const absl::StatusOr<Identity> identity = ParseIdentity(uri, kDomain);
  if (!identity.ok()) return CheckRefusal(identity.status());
  BALLAST_CHECK(UriOf(*identity) == uri && identity->domain == kDomain);
  const bool in_tenant = identity->role != Role::kAdmin && identity->role != Role::kServer;
  BALLAST_CHECK(identity->tenant.empty() != in_tenant);
  BALLAST_CHECK(identity->name.empty() || identity->role == Role::kTrainer);
}

void RunUris(absl::string_view text) {
  const std::vector<std::string> uris = absl::StrSplit(text, '\n');
  const absl::StatusOr<Identity> identity = IdentityOfUris(uris, kDomain);
  if (!identity.ok()) return CheckRefusal(identity.status());
  BALLAST_CHECK(uris.size() == 1 && UriOf(*identity) == uris[0]);
}

size_t Entries(absl::string_view text) {
  size_t count = 0;
  BALLAST_CHECK(ForEachEntry(text, [&](size_t, absl::string_view) {
                  ++count;
                  return absl::OkStatus();
                }).ok());
  return count;
}

void RunTokens(absl::string_view text) {
  const absl::StatusOr<TokenTable> table = TokenTable::Parse(text, "tokens", kDomain);
  if (!table.ok()) return CheckRefusal(table.status());
  BALLAST_CHECK(table->size() == Entries(text));
  const std::string known = TokenLine(kToken, "").substr(0, 7 + 64);
  bool listed = false;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    listed = listed || absl::StartsWith(line, known);
  }
  BALLAST_CHECK((table->Find(kToken) != nullptr) == listed);
  BALLAST_CHECK(table->Find("another") == nullptr);
}

void RunDenied(absl::string_view text) {
  const auto denied = server::DeniedIdentities::Parse(text, "denied", kDomain);
  if (!denied.ok()) return CheckRefusal(denied.status());
  BALLAST_CHECK(denied->size() <= Entries(text));
  BALLAST_CHECK(ForEachEntry(text, [&](size_t, absl::string_view line) {
                  const absl::StatusOr<Identity> identity = ParseIdentity(line, kDomain);
                  BALLAST_CHECK(identity.ok() && denied->Has(*identity));
                  return absl::OkStatus();
                }).ok());
}

class Authz : public FuzzTarget {
 public:
  std::vector<std::string> Seeds() const override {
    const std::string tokens = absl::StrCat(
        "# a comment\n", TokenLine(kToken, "tenant/a/trainer/7"), "\n", TokenLine("b", "admin"));
    return {JoinKind(kUri, Uri("tenant/a/trainer/7")),
            JoinKind(kUri, Uri("tenant/default/operator")),
            JoinKind(kUri, Uri("server/7")),
            JoinKind(kUri, Uri("admin")),
            JoinKind(kUris, absl::StrCat(Uri("server/4294967295"), "\n", Uri("admin"))),
            JoinKind(kTokens, tokens),
            JoinKind(kDenied, absl::StrCat("# gone\n", Uri("tenant/a/viewer"), " \r\n",
                                           Uri("server/3"), "\n"))};
  }

  void Run(absl::string_view input) const override {
    const KindInput parts = SplitKind(input, kKinds);
    if (parts.kind == kUri) RunUri(parts.rest);
    if (parts.kind == kUris) RunUris(parts.rest);
    if (parts.kind == kTokens) RunTokens(parts.rest);
    if (parts.kind == kDenied) RunDenied(parts.rest);
  }

  std::string Mutate(const std::string& input, FuzzRandom* random) const override {
    const KindInput parts = SplitKind(input, kKinds);
    const std::string text(parts.rest);
    return JoinKind(parts.kind, random->OneIn(3) ? MutateBytes(text, words_, random)
                                                 : MutatePiece(text, "/ \n:", words_, random));
  }

 private:
  const std::vector<std::string> words_ = {
      "/",       "//",     "spiffe://", kDomain, "tenant/",    "server/", "admin",
      "trainer", "viewer", "operator",  "0",     "-",          "+",       "%2e",
      "..",      ".",      "?",         "#",     "4294967296", "sha256:", " ",
      "\n",      "\r\n",   "\t",        "@",     ":80",        "\xff"};
};

}  // namespace

std::unique_ptr<FuzzTarget> AuthzTarget() { return std::make_unique<Authz>(); }

}  // namespace ballast::fuzz
