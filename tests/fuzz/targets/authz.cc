// Target authz: identities as certificates have them, the token file, the deny-list, and the file
// of quotas. An identity that is taken has one spelling; a file that is taken has an entry for each
// of its lines. Quotas that are taken are those that the target writes of them.
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
#include "common/text/names.h"
#include "server/config/quota_file.h"
#include "server/quota/amounts.h"
#include "server/security/denied.h"
#include "tests/fuzz/byte_mutator.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/kinds.h"

namespace ballast::fuzz {
namespace {

constexpr char kDomain[] = "example.org";
constexpr char kToken[] = "secret";

enum Kind : size_t { kUri, kUris, kTokens, kDenied, kQuotas, kKinds };

constexpr char kQuotasSeed[] = R"(# of a test
default: {jobs: 4, seats: 16, dram: 1.5GiB, in_flight: 0}
tenants:
  acme:
    jobs: 16
    disk: unlimited
  "7": {waiting_attaches: 2, dram: 100}
)";

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

std::string RowText(const server::Amounts& row) {
  std::string text;
  for (const server::Resource& resource : server::Resources()) {
    const uint64_t amount = row.*resource.amount;
    absl::StrAppend(&text, text.empty() ? "{" : ", ", resource.key, ": ");
    amount == server::kUnlimited ? absl::StrAppend(&text, "unlimited")
                                 : absl::StrAppend(&text, amount);
  }
  return absl::StrCat(text, "}");
}

// As a file that leaves nothing to the default row.
std::string QuotasText(const server::QuotaTable& table) {
  std::string text = absl::StrCat("default: ", RowText(table.others), "\ntenants: {");
  for (const auto& [tenant, row] : table.tenants) {
    absl::StrAppend(&text, "\"", tenant, "\": ", RowText(row), ", ");
  }
  return absl::StrCat(text, "}\n");
}

// Each mistake has a line of its own, with its place.
void CheckQuotaRefusal(const absl::Status& status) {
  const std::vector<std::string> lines = absl::StrSplit(status.message(), '\n');
  for (const std::string& line : lines) CheckRefusal(absl::Status(status.code(), line));
  BALLAST_CHECK(absl::StartsWith(lines[0], "quotas:"));
}

void RunQuotas(absl::string_view text) {
  const absl::StatusOr<server::QuotaTable> table = config::ParseQuotas(text, "quotas");
  if (!table.ok()) return CheckQuotaRefusal(table.status());
  const auto again = config::ParseQuotas(QuotasText(*table), "quotas");
  BALLAST_CHECK(again.ok() && again->others == table->others);
  BALLAST_CHECK(again->tenants == table->tenants);
  for (const auto& [tenant, row] : table->tenants) {
    BALLAST_CHECK(ValidateName("tenant", tenant).ok() && table->Of(tenant) == row);
    // Limits of the default row hold for a row that does not mention them.
    const auto bare = config::ParseQuotas(
        absl::StrCat("tenants: {", tenant, ": {}}\ndefault: ", RowText(row)), "quotas");
    BALLAST_CHECK(bare.ok() && bare->Of(tenant) == row);
  }
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
                                           Uri("server/3"), "\n")),
            JoinKind(kQuotas, kQuotasSeed)};
  }

  void Run(absl::string_view input) const override {
    const KindInput parts = SplitKind(input, kKinds);
    if (parts.kind == kUri) RunUri(parts.rest);
    if (parts.kind == kUris) RunUris(parts.rest);
    if (parts.kind == kTokens) RunTokens(parts.rest);
    if (parts.kind == kDenied) RunDenied(parts.rest);
    if (parts.kind == kQuotas) RunQuotas(parts.rest);
  }

  std::string Mutate(const std::string& input, FuzzRandom* random) const override {
    const KindInput parts = SplitKind(input, kKinds);
    const std::string text(parts.rest);
    const auto& words = parts.kind == kQuotas ? quota_words_ : words_;
    const absl::string_view separators = parts.kind == kQuotas ? " \n:,{}" : "/ \n:";
    return JoinKind(parts.kind, random->OneIn(3) ? MutateBytes(text, words, random)
                                                 : MutatePiece(text, separators, words, random));
  }

 private:
  const std::vector<std::string> quota_words_ = {
      "default",   "tenants",   "jobs", "seats", "dram", "disk",
      "null",      "0x1",       "1e3",  "-1",    "8EiB", "9223372036854775807",
      "0",         "5KiB",      "~",    "{}",    "[1]",  "18446744073709551615",
      ": ",        ", ",        "\n  ", "\"",    "%",    "waiting_attaches",
      "in_flight", "unlimited", "a",    "1.0",   "&x ",  "\xff"};
  const std::vector<std::string> words_ = {
      "/",       "//",     "spiffe://", kDomain, "tenant/",    "server/", "admin",
      "trainer", "viewer", "operator",  "0",     "-",          "+",       "%2e",
      "..",      ".",      "?",         "#",     "4294967296", "sha256:", " ",
      "\n",      "\r\n",   "\t",        "@",     ":80",        "\xff"};
};

}  // namespace

std::unique_ptr<FuzzTarget> AuthzTarget() { return std::make_unique<Authz>(); }

}  // namespace ballast::fuzz
