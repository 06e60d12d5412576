// Runs schedules and loss scalers for tests/python/policy_cases.py as a job does: the lead server's
// rates travel in its vote, and Decide moves the policy. One case per line of stdin, its results to
// stdout as a native uint32 count and so many doubles. A refused case has the count 0xFFFFFFFF. Per
// applied round a schedule gives lr, beta1, beta2 of each group, from index -1 on; a scaler gives
// scale, iteration, last overflow, hysteresis left and skips, and a single -1 where it halts.
// Thread safety: a program of its own.
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "common/job/decide.h"
#include "common/job/round_rates.h"
#include "common/policy/loss_scaler.h"
#include "common/policy/schedule.h"

namespace ballast {
namespace {

constexpr uint32_t kRefused = 0xFFFFFFFFu;

// The name=value pairs of a line. A list has a comma after every value. A name that a line lacks
// ends the program.
class Arguments {
 public:
  explicit Arguments(std::istream& line) {
    for (std::string word; line >> word;) {
      const size_t equals = word.find('=');
      values_[word.substr(0, equals)] = word.substr(equals + 1);
    }
  }

  bool Has(const char* name) const { return values_.count(name) != 0; }
  const std::string& Text(const char* name) const {
    const auto found = values_.find(name);
    if (found == values_.end()) {
      std::fprintf(stderr, "policy_driver: %s is missing\n", name);
      std::exit(2);
    }
    return found->second;
  }
  double Number(const char* name) const { return std::strtod(Text(name).c_str(), nullptr); }
  int64_t Integer(const char* name) const { return std::strtoll(Text(name).c_str(), nullptr, 10); }
  std::vector<double> List(const char* name) const {
    std::vector<double> list;
    std::istringstream text(Text(name));
    for (std::string value; std::getline(text, value, ',');) {
      list.push_back(std::strtod(value.c_str(), nullptr));
    }
    return list;
  }
  PerGroup Groups(const char* name) const {
    if (Text(name).find(',') == std::string::npos) return Number(name);
    return List(name);
  }

 private:
  std::map<std::string, std::string> values_;
};

WarmupType TypeOf(const Arguments& a) {
  return a.Text("warmup_type") == "log" ? WarmupType::kLog : WarmupType::kLinear;
}

WarmupLR Warmup(const Arguments& a) {
  WarmupLR s = {.warmup_min_lr = a.Groups("warmup_min_lr"),
                .warmup_num_steps = a.Integer("warmup_num_steps"),
                .warmup_type = TypeOf(a)};
  if (a.Has("warmup_max_lr")) s.warmup_max_lr = a.Groups("warmup_max_lr");
  return s;
}

OneCycle Cycle(const Arguments& a) {
  OneCycle s = {.cycle_min_lr = a.Groups("cycle_min_lr"),
                .cycle_max_lr = a.Groups("cycle_max_lr"),
                .decay_lr_rate = a.Number("decay_lr_rate"),
                .cycle_first_step_size = a.Number("cycle_first_step_size"),
                .cycle_first_stair_count = a.Integer("cycle_first_stair_count"),
                .decay_step_size = a.Number("decay_step_size"),
                .cycle_momentum = a.Integer("cycle_momentum") != 0,
                .cycle_min_mom = a.Groups("cycle_min_mom"),
                .cycle_max_mom = a.Groups("cycle_max_mom"),
                .decay_mom_rate = a.Number("decay_mom_rate")};
  if (a.Has("cycle_second_step_size")) {
    s.cycle_second_step_size = a.Number("cycle_second_step_size");
  }
  if (a.Has("cycle_second_stair_count")) {
    s.cycle_second_stair_count = a.Integer("cycle_second_stair_count");
  }
  return s;
}

Schedule ScheduleOf(const std::string& kind, const Arguments& a) {
  if (kind == "WarmupLR") return Warmup(a);
  if (kind == "WarmupDecayLR") return WarmupDecayLR{a.Integer("total_num_steps"), Warmup(a)};
  if (kind == "WarmupCosineLR") {
    return WarmupCosineLR{a.Integer("total_num_steps"), a.Number("warmup_min_ratio"),
                          a.Integer("warmup_num_steps"), a.Number("cos_min_ratio"), TypeOf(a)};
  }
  if (kind == "LRRangeTest") {
    return LRRangeTest{a.Groups("lr_range_test_min_lr"), a.Integer("lr_range_test_step_size"),
                       a.Number("lr_range_test_step_rate"),
                       a.Integer("lr_range_test_staircase") != 0};
  }
  return Cycle(a);
}

// A job of one server and one extent, round by round.
class Job {
 public:
  explicit Job(JobSpec spec) : spec_(std::move(spec)), input_(DecideInputOf(spec_)) {
    input_.divisor.assign(spec_.group_count, 1.0);
    input_.extent_group = {0};
    input_.policy = StartPolicy(spec_);
  }

  // One round, whose trainers have the rates `own`. A round that halts leaves the policy alone.
  Decision Round(bool overflow, const std::vector<Hyper>& own) {
    Vote vote = {.norms = {{0, 1.0}}, .rates = RatesOf(spec_, input_.policy, own)};
    if (overflow) {
      vote.norms[0].sumsq = std::numeric_limits<double>::infinity();
      vote.nonfinite = 1;
    }
    const absl::StatusOr<Decision> decision = Decide(input_, {vote});
    if (!decision.ok()) std::abort();
    if (!decision->halted) input_.policy = decision->policy;
    return *decision;
  }

 private:
  const JobSpec spec_;
  DecideInput input_;
};

JobSpec ScheduledSpec(const Schedule& schedule, size_t groups) {
  JobSpec spec;
  spec.group_count = static_cast<uint32_t>(groups);
  spec.max_consecutive_skips = 0;
  spec.policy.schedule = schedule;
  spec.policy.profile = PolicyProfile::kDeepSpeed;
  return spec;
}

std::vector<Hyper> OwnRates(const Arguments& a) {
  const std::vector<double> lr = a.List("lr"), beta1 = a.List("beta1"), beta2 = a.List("beta2");
  std::vector<Hyper> own;
  for (size_t g = 0; g < lr.size(); ++g) own.push_back({lr[g], beta1[g], beta2[g], 1e-8, 0});
  return own;
}

// Every third round overflows: it has the rates of the next one, and moves no schedule.
bool RunSchedule(const std::string& kind, const Arguments& a, std::vector<double>* out) {
  const Schedule schedule = ScheduleOf(kind, a);
  const std::vector<Hyper> own = OwnRates(a);
  if (!CheckSchedule(schedule, own.size()).ok()) return false;
  Job job(ScheduledSpec(schedule, own.size()));
  std::vector<GroupRates> skipped;
  int64_t index = -1;
  for (int64_t round = 0; index < a.Integer("steps"); ++round) {
    const Decision decision = job.Round(round % 3 == 1, own);
    if (decision.halted) std::abort();
    std::vector<GroupRates> rates = decision.policy.rates;
    if (!decision.applied) {
      skipped = std::move(rates);
      continue;
    }
    if (round % 3 == 2 && rates != skipped) std::abort();
    for (size_t g = 0; g < own.size(); ++g) {
      const GroupRates whole =
          RatesAt(schedule, index, g, {own[g][0], own[g][1], own[g][2]}, PolicyProfile::kDeepSpeed);
      // A momentum that no step can use: the job takes the nearest that it can (round_rates.h).
      const bool usable = whole.beta1 >= 0 && whole.beta1 <= kScheduledBetaMax;
      out->insert(out->end(), {rates[g].lr, usable ? rates[g].beta1 : whole.beta1, rates[g].beta2});
    }
    ++index;
  }
  return true;
}

bool RunScaler(const Arguments& a, std::vector<double>* out) {
  const LossScalerConfig config = {
      .initial_scale_power = a.Integer("initial_scale_power"),
      .loss_scale_window = a.Integer("loss_scale_window"),
      .hysteresis = a.Integer("hysteresis"),
      .consecutive_hysteresis = a.Integer("consecutive_hysteresis") != 0,
      .min_loss_scale = a.Number("min_loss_scale")};
  if (!CheckLossScaler(config).ok()) return false;
  JobSpec spec;
  spec.max_consecutive_skips = 0;
  spec.policy.loss_scaler = config;
  Job job(std::move(spec));
  for (const char flag : a.Text("flags")) {
    const Decision decision = job.Round(flag == '1', {{1e-3, 0.9, 0.999, 1e-8, 0}});
    if (decision.halted) {
      out->push_back(-1);
      break;
    }
    const PolicyState& policy = decision.policy;
    out->insert(out->end(),
                {policy.loss_scale, static_cast<double>(policy.scaler_iteration),
                 static_cast<double>(policy.last_overflow),
                 static_cast<double>(policy.hysteresis_left), static_cast<double>(policy.skipped)});
    if (policy.loss_scale > kLossScaleMax / 2) break;  // policy_cases.py, SCALE_SHOWN_MAX
  }
  return true;
}

void Write(const void* data, size_t bytes) {
  if (std::fwrite(data, 1, bytes, stdout) != bytes) std::exit(1);
}

void RunLine(const std::string& text) {
  std::istringstream line(text);
  std::string kind;
  line >> kind;
  const Arguments arguments(line);
  std::vector<double> out;
  const bool runs =
      kind == "DynamicLossScaler" ? RunScaler(arguments, &out) : RunSchedule(kind, arguments, &out);
  const uint32_t count = runs ? static_cast<uint32_t>(out.size()) : kRefused;
  Write(&count, sizeof count);
  if (runs) Write(out.data(), out.size() * sizeof(double));
}

}  // namespace
}  // namespace ballast

int main() {
  for (std::string line; std::getline(std::cin, line);) ballast::RunLine(line);
  return 0;
}
