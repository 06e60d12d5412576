#include "bench/parts/harness.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace ballast::bench {
namespace {

template <typename T>
bool WithinBounds(bool parsed, T number, T least, T most, T* value) {
  if (!parsed || !(number >= least && number <= most)) return false;
  *value = number;
  return true;
}

}  // namespace

double Now() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

double OwnCpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void FillRandomBytes(void* to, size_t bytes, uint64_t seed) {
  uint64_t state = seed * 0x9E3779B97F4A7C15 + 1;
  char* out = static_cast<char*>(to);
  while (bytes > 0) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    const size_t take = std::min(bytes, sizeof(state));
    std::memcpy(out, &state, take);
    out += take;
    bytes -= take;
  }
}

absl::Status SystemError(const std::string& what) {
  return absl::InternalError(absl::StrCat(what, ": ", std::strerror(errno)));
}

absl::StatusOr<std::unique_ptr<TemporaryDirectory>> TemporaryDirectory::Create(
    const std::string& parent) {
  std::string path = absl::StrCat(parent, "/ballast-bench-XXXXXX");
  if (mkdtemp(path.data()) == nullptr) return SystemError("cannot create " + path);
  return std::unique_ptr<TemporaryDirectory>(new TemporaryDirectory(path));
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::string Spread(const std::vector<double>& values) {
  if (values.empty()) return "";
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return absl::StrFormat("%.4g-%.4g", *least, *most);
}

void JsonObject::AddNumber(const std::string& key, double value) {
  AddRaw(key, absl::StrFormat("%.6g", value));
}

void JsonObject::Add(const std::string& key, const std::string& text) {
  AddRaw(key, absl::StrCat("\"", text, "\""));
}

void JsonObject::Add(const std::string& key, bool value) { AddRaw(key, value ? "true" : "false"); }

void JsonObject::AddRaw(const std::string& key, const std::string& json) {
  absl::StrAppend(&text_, text_.empty() ? "" : ", ", "\"", key, "\": ", json);
}

std::string JsonObject::Text() const { return absl::StrCat("{", text_, "}"); }

void Report::AddSpread(const std::string& key, const std::vector<double>& values) {
  spread_.Add(key, Spread(values));
}

double Report::AddMedian(const std::string& key, const std::vector<double>& values) {
  const double median = Median(values);
  Add(key, median);
  AddSpread(key, values);
  return median;
}

void Report::AddBar(const std::string& key, double bar, bool met) {
  bars_.Add(key, bar);
  if (!met) missed_.push_back(absl::StrCat("\"", key, "\""));
}

Outcome Report::Finish(bool verified, bool right) {
  if (!spread_.empty()) AddRaw("spread", spread_.Text());
  AddRaw("bars", bars_.Text());
  AddRaw("missed", absl::StrCat("[", absl::StrJoin(missed_, ", "), "]"));
  Add("verified", verified);
  Add("pass", right && missed_.empty());
  return {.json = Text(), .right = right};
}

bool ParseNumber(const std::string& text, uint64_t least, uint64_t most, uint64_t* value) {
  uint64_t number = 0;
  const bool parsed = absl::SimpleAtoi(text, &number);
  return WithinBounds(parsed, number, least, most, value);
}

bool ParseNumber(const std::string& text, int least, int most, int* value) {
  int number = 0;
  const bool parsed = absl::SimpleAtoi(text, &number);
  return WithinBounds(parsed, number, least, most, value);
}

bool ParseNumber(const std::string& text, double least, double most, double* value) {
  double number = 0;
  const bool parsed = absl::SimpleAtod(text, &number);
  return WithinBounds(parsed, number, least, most, value);
}

void Flags::Switch(const std::string& name, bool* value) {
  flags_.push_back({.name = name, .take = nullptr, .alone = value});
}

void Flags::Text(const std::string& name, std::string* value) {
  Value(name, [=](const std::string& text) {
    *value = text;
    return true;
  });
}

void Flags::Value(const std::string& name, Take take) {
  flags_.push_back({.name = name, .take = std::move(take)});
}

void Flags::OptionalValue(const std::string& name, bool* alone, Take take) {
  flags_.push_back({.name = name, .take = std::move(take), .alone = alone});
}

void Flags::Server(const std::string& program, std::string* server,
                   std::vector<std::string>* arguments) {
  *server = (std::filesystem::path(program).parent_path() / "ballastd").string();
  Text("--server", server);
  Value("--set", [=](const std::string& setting) {
    arguments->push_back("--set=" + setting);
    return true;
  });
}

const Flags::Flag* Flags::Find(const std::string& name) const {
  const auto found = std::find_if(flags_.begin(), flags_.end(),
                                  [&](const Flag& flag) { return flag.name == name; });
  return found == flags_.end() ? nullptr : &*found;
}

bool Flags::Parse(int argc, char** argv) const {
  for (int i = 1; i < argc; ++i) {
    const Flag* const flag = Find(argv[i]);
    if (flag == nullptr) return false;
    const bool last = i + 1 == argc;
    if (flag->alone && (!flag->take || last || absl::StartsWith(argv[i + 1], "--"))) {
      *flag->alone = true;
    } else if (last || !flag->take(argv[++i])) {
      return false;
    }
  }
  return !valid_ || valid_();
}

int RunMain(const std::string& name, const std::string& usage, Flags flags, int argc, char** argv,
            const std::function<absl::StatusOr<Outcome>()>& run) {
  bool json = false;
  flags.Switch("--json", &json);
  if (!flags.Parse(argc, argv)) {
    std::cerr << usage;
    return 2;
  }
  const absl::StatusOr<Outcome> outcome = run();
  if (!outcome.ok()) {
    std::cerr << name << ": " << outcome.status().message() << "\n";
    return 1;
  }
  std::cerr << outcome->json << "\n";
  if (json) std::cout << outcome->json << "\n";
  return outcome->right ? 0 : 1;
}

}  // namespace ballast::bench
