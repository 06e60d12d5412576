#include "common/security/tokens.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/security/entries.h"
#include "common/security/secret.h"
#include "common/security/sha256.h"

namespace ballast {
namespace {

constexpr char kAlgorithm[] = "sha256:";
constexpr size_t kHexDigits = 64;
// A table is searched whole for each call with a token.
constexpr size_t kTokensMax = 10'000;

bool IsHexDigit(char c) {
  return absl::ascii_isdigit(static_cast<unsigned char>(c)) || (c >= 'a' && c <= 'f');
}

// `bytes`: as many as a hash has.
TokenHash HashOf(absl::string_view bytes) {
  TokenHash hash{};
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(hash.data()));
  return hash;
}

bool Equal(const TokenHash& a, const TokenHash& b) {
  const auto bytes = [](const TokenHash& hash) {
    return absl::string_view(reinterpret_cast<const char*>(hash.data()), hash.size());
  };
  return SameSecret(bytes(a), bytes(b));
}

}  // namespace

TokenHash HashToken(absl::string_view token) { return HashOf(Sha256(token)); }

// Place of a line, for messages.
struct TokenTable::Reader {
  absl::Status Bad(size_t column, absl::string_view why) const {
    return absl::InvalidArgumentError(absl::StrCat(file, ":", line, ":", column, ": ", why));
  }
  absl::StatusOr<Entry> Read(absl::string_view text) const;

  absl::string_view file;
  absl::string_view domain;
  size_t line = 0;
};

absl::StatusOr<TokenTable::Entry> TokenTable::Reader::Read(absl::string_view text) const {
  absl::string_view rest = text;
  if (!absl::ConsumePrefix(&rest, kAlgorithm)) {
    return Bad(1, "a line is \"sha256:<64 hex digits> <identity>\"; it must begin with sha256:");
  }
  const absl::string_view hex = rest.substr(0, rest.find(' '));
  if (hex.size() != kHexDigits || !std::all_of(hex.begin(), hex.end(), IsHexDigit)) {
    return Bad(sizeof(kAlgorithm), absl::StrCat("a hash has ", kHexDigits,
                                                " lower-case hex digits, then comes a space; this "
                                                "one has ",
                                                hex.size(), " bytes"));
  }
  Entry entry;
  const std::string bytes = absl::HexStringToBytes(hex);
  entry.hash = HashOf(bytes);
  const absl::string_view uri = absl::StripLeadingAsciiWhitespace(rest.substr(hex.size()));
  const auto column = static_cast<size_t>(uri.data() - text.data()) + 1;
  absl::StatusOr<Identity> identity = ParseIdentity(uri, domain);
  if (!identity.ok()) return Bad(column, identity.status().message());
  if (identity->role == Role::kServer) {
    return Bad(column, "a server has a certificate, not a token");
  }
  entry.identity = *std::move(identity);
  return entry;
}

absl::StatusOr<TokenTable> TokenTable::Parse(absl::string_view text, absl::string_view file,
                                             absl::string_view domain) {
  TokenTable table;
  BALLAST_RETURN_IF_ERROR(ForEachEntry(text, [&](size_t number, absl::string_view line) {
    return table.Add(Reader{file, domain, number}, line);
  }));
  return table;
}

absl::Status TokenTable::Add(const Reader& reader, absl::string_view line) {
  BALLAST_ASSIGN_OR_RETURN(Entry entry, reader.Read(line));
  for (const Entry& before : entries_) {
    if (Equal(before.hash, entry.hash)) {
      return reader.Bad(1, "the token of this line stands in the file before");
    }
  }
  if (entries_.size() == kTokensMax) {
    return reader.Bad(1, absl::StrCat("the file has more than ", kTokensMax, " tokens"));
  }
  entries_.push_back(std::move(entry));
  return absl::OkStatus();
}

const Identity* TokenTable::Find(absl::string_view token) const {
  const TokenHash hash = HashToken(token);
  const Identity* found = nullptr;
  for (const Entry& entry : entries_) {
    if (Equal(entry.hash, hash)) found = &entry.identity;
  }
  return found;
}

}  // namespace ballast
