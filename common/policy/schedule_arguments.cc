#include "common/policy/schedule_arguments.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/policy/refusal.h"

namespace ballast {
namespace {

// `visit(name, field)` for each argument of a schedule, constant or not.
template <typename S, typename V>
void VisitWarmup(S& s, V& visit) {
  visit("warmup_min_lr", s.warmup_min_lr);
  visit("warmup_max_lr", s.warmup_max_lr);
  visit("warmup_num_steps", s.warmup_num_steps);
  visit("warmup_type", s.warmup_type);
}

template <typename S, typename V>
void Visit(S& s, V& visit) {
  using T = std::remove_const_t<S>;
  if constexpr (std::is_same_v<T, WarmupLR>) {
    VisitWarmup(s, visit);
  } else if constexpr (std::is_same_v<T, WarmupDecayLR>) {
    visit("total_num_steps", s.total_num_steps);
    VisitWarmup(s.warmup, visit);
  } else if constexpr (std::is_same_v<T, WarmupCosineLR>) {
    visit("total_num_steps", s.total_num_steps);
    visit("warmup_min_ratio", s.warmup_min_ratio);
    visit("warmup_num_steps", s.warmup_num_steps);
    visit("cos_min_ratio", s.cos_min_ratio);
    visit("warmup_type", s.warmup_type);
  } else if constexpr (std::is_same_v<T, LRRangeTest>) {
    visit("lr_range_test_min_lr", s.lr_range_test_min_lr);
    visit("lr_range_test_step_size", s.lr_range_test_step_size);
    visit("lr_range_test_step_rate", s.lr_range_test_step_rate);
    visit("lr_range_test_staircase", s.lr_range_test_staircase);
  } else {
    visit("cycle_min_lr", s.cycle_min_lr);
    visit("cycle_max_lr", s.cycle_max_lr);
    visit("decay_lr_rate", s.decay_lr_rate);
    visit("cycle_first_step_size", s.cycle_first_step_size);
    visit("cycle_second_step_size", s.cycle_second_step_size);
    visit("cycle_first_stair_count", s.cycle_first_stair_count);
    visit("cycle_second_stair_count", s.cycle_second_stair_count);
    visit("decay_step_size", s.decay_step_size);
    visit("cycle_momentum", s.cycle_momentum);
    visit("cycle_min_mom", s.cycle_min_mom);
    visit("cycle_max_mom", s.cycle_max_mom);
    visit("decay_mom_rate", s.decay_mom_rate);
  }
}

struct Lister {
  void operator()(const char* name, const PerGroup& field) {
    std::visit([&](const auto& value) { out.push_back({name, value}); }, field);
  }
  void operator()(const char* name, double field) { out.push_back({name, field}); }
  void operator()(const char* name, int64_t field) {
    out.push_back({name, static_cast<double>(field)});
  }
  void operator()(const char* name, bool field) { out.push_back({name, field ? 1.0 : 0.0}); }
  void operator()(const char* name, WarmupType field) {
    out.push_back({name, std::string(field == WarmupType::kLog ? "log" : "linear")});
  }
  template <typename T>
  void operator()(const char* name, const std::optional<T>& field) {
    if (field.has_value()) (*this)(name, *field);
  }

  std::vector<ScheduleArgument> out;
};

// Puts the values of `given` into a schedule's fields, and erases them there.
struct Taker {
  static absl::Status Take(const ScheduleValue& value, double* field) {
    if (const double* number = std::get_if<double>(&value)) {
      *field = *number;
      return absl::OkStatus();
    }
    return Refuse("one number");
  }
  static absl::Status Take(const ScheduleValue& value, int64_t* field) {
    constexpr double kMost = 9007199254740992.0;  // whole numbers up to here are exact
    double number = 0.5;
    const bool whole =
        Take(value, &number).ok() && std::fabs(number) <= kMost && number == std::floor(number);
    if (!whole) return Refuse("a whole number of at most 2^53");
    *field = static_cast<int64_t>(number);
    return absl::OkStatus();
  }
  static absl::Status Take(const ScheduleValue& value, bool* field) {
    const double* const number = std::get_if<double>(&value);
    if (number == nullptr || (*number != 0 && *number != 1)) return Refuse("0 or 1");
    *field = *number != 0;
    return absl::OkStatus();
  }
  static absl::Status Take(const ScheduleValue& value, PerGroup* field) {
    if (const double* number = std::get_if<double>(&value)) *field = *number;
    if (const auto* list = std::get_if<std::vector<double>>(&value)) *field = *list;
    return std::holds_alternative<std::string>(value)
               ? Refuse("one number for all groups or one per group")
               : absl::OkStatus();
  }
  static absl::Status Take(const ScheduleValue& value, WarmupType* field) {
    const std::string* const word = std::get_if<std::string>(&value);
    if (word == nullptr || (*word != "log" && *word != "linear")) return Refuse("log or linear");
    *field = *word == "log" ? WarmupType::kLog : WarmupType::kLinear;
    return absl::OkStatus();
  }
  template <typename T>
  static absl::Status Take(const ScheduleValue& value, std::optional<T>* field) {
    T taken{};
    absl::Status status = Take(value, &taken);
    if (status.ok()) *field = std::move(taken);
    return status;
  }

  template <typename T>
  void operator()(const char* name, T& field) {
    known.emplace_back(name);
    const auto argument = std::find_if(given.begin(), given.end(),
                                       [&](const auto& each) { return each.name == name; });
    if (argument == given.end()) return;
    const absl::Status taken = Take(argument->value, &field);
    if (!taken.ok() && status.ok()) {
      status = Refuse(absl::StrCat(name, " is ", ScheduleValueText(argument->value),
                                   "; it must be ", taken.message()));
    }
    given.erase(argument);
  }

  std::vector<ScheduleArgument> given;
  std::vector<std::string> known = {};
  absl::Status status = {};
};

// The types with their defaults, in the order of Schedule.
std::vector<Schedule> AllTypes() {
  return {WarmupLR(), WarmupDecayLR(), WarmupCosineLR(), LRRangeTest(), OneCycle()};
}

}  // namespace

std::string ScheduleType(const Schedule& schedule) {
  constexpr const char* kNames[] = {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "LRRangeTest",
                                    "OneCycle"};
  return kNames[schedule.index()];
}

std::vector<ScheduleArgument> ScheduleArguments(const Schedule& schedule) {
  Lister lister;
  std::visit([&](const auto& s) { Visit(s, lister); }, schedule);
  return std::move(lister.out);
}

absl::StatusOr<Schedule> MakeSchedule(const std::string& type,
                                      const std::vector<ScheduleArgument>& arguments) {
  std::vector<std::string> types;
  for (Schedule& schedule : AllTypes()) {
    types.push_back(ScheduleType(schedule));
    if (types.back() != type) continue;
    Taker taker{arguments};
    std::visit([&](auto& s) { Visit(s, taker); }, schedule);
    if (!taker.status.ok()) return taker.status;
    if (taker.given.empty()) return schedule;
    return Refuse(absl::StrCat(type, " has no argument \"", taker.given.front().name,
                               "\", or it is given twice; it has ",
                               absl::StrJoin(taker.known, ", ")));
  }
  return Refuse(absl::StrCat("schedule \"", type, "\" is not known; this version offers ",
                             absl::StrJoin(types, ", ")));
}

std::string ScheduleValueText(const ScheduleValue& value) {
  const auto number = [](double x) { return absl::StrFormat("%.17g", x); };
  if (const double* one = std::get_if<double>(&value)) return number(*one);
  if (const auto* word = std::get_if<std::string>(&value)) return *word;
  std::vector<std::string> texts;
  for (const double x : std::get<std::vector<double>>(value)) texts.push_back(number(x));
  return absl::StrCat("[", absl::StrJoin(texts, ", "), "]");
}

}  // namespace ballast
