// Sizes and durations with units; see units.h.
// Thread safety: pure functions.
#include "common/text/units.h"

#include <limits>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ballast {
namespace {

struct Unit {
  absl::string_view name;
  uint64_t factor;
};

// Smallest first; the first one is the unit that everything is counted in.
const std::vector<Unit>& ByteUnits() {
  static const auto* const units = new std::vector<Unit>{{"B", 1},
                                                         {"KiB", uint64_t{1} << 10},
                                                         {"MiB", uint64_t{1} << 20},
                                                         {"GiB", uint64_t{1} << 30},
                                                         {"TiB", uint64_t{1} << 40}};
  return *units;
}

const std::vector<Unit>& TimeUnits() {
  static const auto* const units =
      new std::vector<Unit>{{"ns", 1},         {"us", 1000},       {"ms", 1000000},
                            {"s", 1000000000}, {"m", 60000000000}, {"h", 3600000000000}};
  return *units;
}

struct Quantity {
  absl::string_view what;     // "size" or "duration".
  absl::string_view example;  // Ends the error message.
  bool needs_unit;            // Unless the number is 0.
  const std::vector<Unit>* units;
};

absl::Status BadText(const Quantity& quantity, absl::string_view text, absl::string_view reason) {
  std::string names;
  for (const Unit& unit : *quantity.units) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", unit.name);
  }
  return absl::InvalidArgumentError(absl::StrCat(quantity.what, " \"", text, "\" ", reason,
                                                 "; accepted units: ", names, " (for example ",
                                                 quantity.example, ")"));
}

// A decimal number as mantissa / 10^decimals.
struct Decimal {
  absl::uint128 mantissa = 0;
  int decimals = 0;
};

// Takes a number like 12 or 1.5 from the front of `text`; false when there is none or it has more
// digits than any size or duration needs.
bool TakeDecimal(absl::string_view* text, Decimal* number) {
  constexpr int kMaxDigits = 25;  // 10^25 times an hour in ns still fits 128 bits.
  int digits = 0;
  bool point = false;
  size_t i = 0;
  for (; i < text->size(); ++i) {
    const char c = (*text)[i];
    if (c == '.' && !point && digits > 0) {
      point = true;
    } else if (absl::ascii_isdigit(static_cast<unsigned char>(c))) {
      if (++digits > kMaxDigits) return false;
      number->mantissa = number->mantissa * 10 + static_cast<uint64_t>(c - '0');
      if (point) ++number->decimals;
    } else {
      break;
    }
  }
  if (digits == 0 || (*text)[i - 1] == '.') return false;
  text->remove_prefix(i);
  return true;
}

absl::uint128 PowerOfTen(int exponent) {
  absl::uint128 power = 1;
  for (int i = 0; i < exponent; ++i) power *= 10;
  return power;
}

absl::StatusOr<uint64_t> ParseWithUnit(const Quantity& quantity, absl::string_view text) {
  absl::string_view rest = absl::StripAsciiWhitespace(text);
  Decimal number;
  if (!TakeDecimal(&rest, &number)) return BadText(quantity, text, "does not begin with a number");
  rest = absl::StripLeadingAsciiWhitespace(rest);
  const Unit* unit = nullptr;
  if (rest.empty() && (!quantity.needs_unit || number.mantissa == 0))
    unit = &quantity.units->front();
  for (const Unit& candidate : *quantity.units) {
    if (rest == candidate.name) unit = &candidate;
  }
  if (unit == nullptr) {
    return BadText(quantity, text,
                   rest.empty() ? "has no unit"
                                : absl::StrCat("has the unit \"", rest, "\", which is not known"));
  }
  const absl::uint128 scaled = number.mantissa * unit->factor;
  const absl::uint128 divisor = PowerOfTen(number.decimals);
  if (scaled % divisor != 0) {
    return BadText(quantity, text,
                   absl::StrCat("is not a whole number of ", quantity.units->front().name));
  }
  const absl::uint128 value = scaled / divisor;
  if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return BadText(quantity, text,
                   absl::StrCat("is more than 2^63 - 1 ", quantity.units->front().name));
  }
  return absl::Uint128Low64(value);
}

std::string Format(uint64_t value, const std::vector<Unit>& units) {
  const Unit* best = &units.front();
  for (const Unit& unit : units) {
    if (value != 0 && value % unit.factor == 0) best = &unit;
  }
  return absl::StrCat(value / best->factor, best->name);
}

}  // namespace

absl::StatusOr<uint64_t> ParseBytes(absl::string_view text) {
  return ParseWithUnit(Quantity{"size", "64MiB", /*needs_unit=*/false, &ByteUnits()}, text);
}

absl::StatusOr<std::chrono::nanoseconds> ParseDuration(absl::string_view text) {
  const absl::StatusOr<uint64_t> ns =
      ParseWithUnit(Quantity{"duration", "30s", /*needs_unit=*/true, &TimeUnits()}, text);
  if (!ns.ok()) return ns.status();
  return std::chrono::nanoseconds(static_cast<int64_t>(*ns));
}

std::string FormatBytes(uint64_t bytes) { return Format(bytes, ByteUnits()); }

std::string BytesText(uint64_t bytes) {
  const Unit* best = &ByteUnits().front();
  for (const Unit& unit : ByteUnits()) {
    if (bytes >= unit.factor) best = &unit;
  }
  const std::string exact = absl::StrCat(bytes, " bytes");
  if (best->factor == 1) return exact;
  const double rough = static_cast<double>(bytes) / static_cast<double>(best->factor);
  return absl::StrFormat("%s (%.1f %s)", exact, rough, std::string(best->name));
}

std::string FormatDuration(std::chrono::nanoseconds duration) {
  const int64_t ns = duration.count();
  if (ns == 0) return "0s";
  // The negation in unsigned arithmetic is defined for the least value too.
  if (ns < 0) return absl::StrCat("-", Format(~static_cast<uint64_t>(ns) + 1, TimeUnits()));
  return Format(static_cast<uint64_t>(ns), TimeUnits());
}

}  // namespace ballast
