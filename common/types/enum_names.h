// The texts of the enums in ballast/types.h: one table per enum, read both ways. Messages, status
// pages and options that come as text take them from here.
// Comes from: every room that prints or reads such a text. Thread safety: pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "ballast/types.h"

namespace ballast {

template <typename E>
struct EnumName {
  E value;
  absl::string_view name;
};

// Every value of E with its text; nullptr for other types.
template <typename E>
inline constexpr auto kEnumNames = nullptr;

template <>
inline constexpr auto kEnumNames<InitMode> = std::to_array<EnumName<InitMode>>(
    {{InitMode::kEqual, "equal"}, {InitMode::kBroadcast, "broadcast"}});

template <>
inline constexpr auto kEnumNames<Durability> =
    std::to_array<EnumName<Durability>>({{Durability::kPower, "power"},
                                         {Durability::kProcess, "process"},
                                         {Durability::kNone, "none"}});

template <>
inline constexpr auto kEnumNames<Device> = std::to_array<EnumName<Device>>(
    {{Device::kAuto, "auto"}, {Device::kCpu, "cpu"}, {Device::kNvme, "nvme"}});

template <>
inline constexpr auto kEnumNames<NonfinitePolicy> = std::to_array<EnumName<NonfinitePolicy>>(
    {{NonfinitePolicy::kSkip, "skip"}, {NonfinitePolicy::kHalt, "halt"}});

template <>
inline constexpr auto kEnumNames<Gradients> =
    std::to_array<EnumName<Gradients>>({{Gradients::kLocal, "local"},
                                        {Gradients::kReduced, "reduced"},
                                        {Gradients::kScattered, "scattered"}});

template <>
inline constexpr auto kEnumNames<Resume> = std::to_array<EnumName<Resume>>(
    {{Resume::kNever, "never"}, {Resume::kAuto, "auto"}, {Resume::kMust, "must"}});

template <>
inline constexpr auto kEnumNames<PolicyProfile> = std::to_array<EnumName<PolicyProfile>>(
    {{PolicyProfile::kExact, "exact"}, {PolicyProfile::kDeepSpeed, "deepspeed"}});

template <>
inline constexpr auto kEnumNames<CollectivePhase> =
    std::to_array<EnumName<CollectivePhase>>({{CollectivePhase::kNone, ""},
                                              {CollectivePhase::kInit, "making its communicator"},
                                              {CollectivePhase::kAgreement, "agreement"},
                                              {CollectivePhase::kReduceScatter, "reduce-scatter"},
                                              {CollectivePhase::kPush, "push"},
                                              {CollectivePhase::kPull, "pull"},
                                              {CollectivePhase::kAllGather, "all-gather"}});

template <typename E>
concept NamedEnum = requires {
  kEnumNames<E>.size();
};

// The value of that number, which may come from a peer; none for one that this build does not know.
template <NamedEnum E>
constexpr std::optional<E> FromNumber(int64_t number) {
  for (const EnumName<E>& row : kEnumNames<E>) {
    if (static_cast<int64_t>(row.value) == number) return row.value;
  }
  return std::nullopt;
}

template <NamedEnum E>
constexpr bool IsKnown(E value) {
  return FromNumber<E>(static_cast<int64_t>(value)).has_value();
}

// "unknown" for a value outside of the table.
template <NamedEnum E>
constexpr absl::string_view NameOf(E value) {
  for (const EnumName<E>& row : kEnumNames<E>) {
    if (row.value == value) return row.name;
  }
  return "unknown";
}

template <NamedEnum E>
constexpr std::optional<E> FromName(absl::string_view name) {
  for (const EnumName<E>& row : kEnumNames<E>) {
    if (row.name == name) return row.value;
  }
  return std::nullopt;
}

// Before entry `i` of a list in a sentence.
constexpr absl::string_view Separator(size_t i, size_t size, absl::string_view last) {
  return i == 0 ? "" : i + 1 == size ? last : ", ";
}

// "power (1), process (2) and none (3)".
template <NamedEnum E>
std::string NumberedNames() {
  std::string text;
  for (size_t i = 0; i < kEnumNames<E>.size(); ++i) {
    const auto& [value, name] = kEnumNames<E>[i];
    absl::StrAppend(&text, Separator(i, kEnumNames<E>.size(), " and "), name, " (",
                    static_cast<int>(value), ")");
  }
  return text;
}

// For a number outside of the table: "durability level 7 is not known; power (1), process (2) and
// none (3) are". `noun` names the number.
template <NamedEnum E>
std::string NotKnown(absl::string_view noun, int number) {
  return absl::StrCat(noun, " ", number, " is not known; ", NumberedNames<E>(), " are");
}

// "'power', 'process' or 'none'".
template <NamedEnum E>
std::string QuotedNames() {
  std::string text;
  for (size_t i = 0; i < kEnumNames<E>.size(); ++i) {
    absl::StrAppend(&text, Separator(i, kEnumNames<E>.size(), " or "), "'", kEnumNames<E>[i].name,
                    "'");
  }
  return text;
}

}  // namespace ballast
