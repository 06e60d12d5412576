// The common part of the benchmark programs: flags, clocks, random bytes, temporary directories,
// medians, the report with its bars, and main(). Comes from: every program in this folder. Goes to:
// stdout and stderr. Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ballast::bench {

// Seconds of a clock that never goes back.
double Now();
// User and system time of this process so far, seconds.
double OwnCpuSeconds();

// Random bytes, the same for equal seeds.
void FillRandomBytes(void* to, size_t bytes, uint64_t seed);

// INTERNAL: what failed, and the reason that errno gives.
absl::Status SystemError(const std::string& what);

// A new directory below `parent`; the destructor removes it with everything in it.
class TemporaryDirectory {
 public:
  // `parent` must exist. Errors: INTERNAL, with the system's reason.
  static absl::StatusOr<std::unique_ptr<TemporaryDirectory>> Create(const std::string& parent);
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  explicit TemporaryDirectory(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

// `get` of every row; a pointer to a member will do.
template <typename Row, typename Get>
std::vector<double> Column(const std::vector<Row>& rows, const Get& get) {
  std::vector<double> values;
  for (const Row& row : rows) values.push_back(static_cast<double>(std::invoke(get, row)));
  return values;
}

// The middle value, or the mean of the two in the middle; 0 for none.
double Median(std::vector<double> values);
template <typename Row, typename Get>
double Median(const std::vector<Row>& rows, const Get& get) {
  return Median(Column(rows, get));
}
// The smallest and the largest, as "0.71-0.93": how far apart the repetitions were.
std::string Spread(const std::vector<double>& values);

// Writes one JSON object, in the order of the calls.
class JsonObject {
 public:
  // Six significant digits.
  template <typename Number, std::enable_if_t<std::is_arithmetic_v<Number>, int> = 0>
  void Add(const std::string& key, Number value) {
    AddNumber(key, static_cast<double>(value));
  }
  void Add(const std::string& key, bool value);
  // `text` needs no escapes.
  void Add(const std::string& key, const std::string& text);
  void Add(const std::string& key, const char* text) { Add(key, std::string(text)); }
  // `json` is a value in its form in the object.
  void AddRaw(const std::string& key, const std::string& json);
  bool empty() const { return text_.empty(); }
  std::string Text() const;

 private:
  void AddNumber(const std::string& key, double value);

  std::string text_;
};

// A benchmark's result: one JSON object, and whether every result was right. Bars are missed
// in the object only.
struct Outcome {
  std::string json;
  bool right = false;
};

// The JSON object that a benchmark prints: its values, how far the repetitions were apart, its
// bars.
class Report : public JsonObject {
 public:
  // The key "spread" gets how far `values` are apart.
  void AddSpread(const std::string& key, const std::vector<double>& values);
  // Adds the median of `values` and their spread. Returns the median.
  double AddMedian(const std::string& key, const std::vector<double>& values);
  // The key "bars" gets the bar; "missed" gets the key unless the value keeps to the bar.
  void AtLeast(const std::string& key, double value, double bar) { AddBar(key, bar, value >= bar); }
  void AtMost(const std::string& key, double value, double bar) { AddBar(key, bar, value <= bar); }

  // Adds "spread", "bars", "missed", "verified" and "pass": all right and no bar missed.
  Outcome Finish(bool verified, bool right);
  Outcome Finish(bool verified) { return Finish(verified, verified); }

 private:
  void AddBar(const std::string& key, double bar, bool met);

  JsonObject spread_;
  JsonObject bars_;
  std::vector<std::string> missed_;
};

// `text` as a number between `least` and `most`; false when it is not.
bool ParseNumber(const std::string& text, uint64_t least, uint64_t most, uint64_t* value);
bool ParseNumber(const std::string& text, int least, int most, int* value);
bool ParseNumber(const std::string& text, double least, double most, double* value);

// The flags of a program. An absent flag leaves its variable as it is. Variables outlive
// the flags.
class Flags {
 public:
  // Takes the value that follows a flag; false refuses it.
  using Take = std::function<bool(const std::string& value)>;

  void Switch(const std::string& name, bool* value);
  void Text(const std::string& name, std::string* value);
  template <typename T>
  void Number(const std::string& name, T least, T most, T* value) {
    Value(name, [=](const std::string& text) { return ParseNumber(text, least, most, value); });
  }
  // A number from `unit` to `most` that `unit` divides.
  template <typename T>
  void Multiple(const std::string& name, T unit, T most, T* value) {
    Value(name, [=](const std::string& text) {
      return ParseNumber(text, unit, most, value) && *value % unit == 0;
    });
  }
  void Value(const std::string& name, Take take);
  // Sets `alone` where no value follows, which is at the end and before another flag.
  void OptionalValue(const std::string& name, bool* alone, Take take);
  // --server BALLASTD and --set FIELD=VALUE, repeatable. The default is the ballastd next to
  // `program`; a setting becomes a server's argument.
  void Server(const std::string& program, std::string* server, std::vector<std::string>* arguments);
  // `valid` runs when all flags are read; false refuses them.
  void Require(std::function<bool()> valid) { valid_ = std::move(valid); }

  bool Parse(int argc, char** argv) const;

 private:
  struct Flag {
    std::string name;
    Take take;              // null: no value follows
    bool* alone = nullptr;  // null: a value must follow
  };
  const Flag* Find(const std::string& name) const;

  std::vector<Flag> flags_;
  std::function<bool()> valid_;
};

// A benchmark of three parts and a result: makes a `Bench` of `arguments`, and runs its Prepare,
// Measure, Verify and Result. The first error ends it.
template <typename Bench, typename... Arguments>
absl::StatusOr<Outcome> RunBench(Arguments&&... arguments) {
  Bench bench(std::forward<Arguments>(arguments)...);
  for (absl::Status (Bench::*const part)() : {&Bench::Prepare, &Bench::Measure, &Bench::Verify}) {
    if (const absl::Status status = (bench.*part)(); !status.ok()) return status;
  }
  return bench.Result();
}

// Times two things in turn, `warmups` + `repeats` times; in every other repetition the second one
// goes first. `time(which, &pair)` does it once, and fills its part of the pair; `text` is a pair's
// line on stderr. Returns the pairs after the warm-ups, or the first error.
template <typename Pair, typename Time, typename Text>
absl::StatusOr<std::vector<Pair>> MeasureInTurn(int warmups, int repeats, Time time, Text text) {
  std::vector<Pair> pairs;
  for (int i = 0; i < warmups + repeats; ++i) {
    Pair pair = {};
    const size_t first = static_cast<size_t>(i % 2);
    for (const size_t which : {first, 1 - first}) {
      if (const absl::Status status = time(which, &pair); !status.ok()) return status;
    }
    const bool warmup = i < warmups;
    std::cerr << (warmup ? "warm-up: " : "         ") << text(pair) << "\n";
    if (!warmup) pairs.push_back(pair);
  }
  return pairs;
}

// The main() of a benchmark: adds --json to `flags`, reads them, runs `run`, and prints the result
// on stderr, and with --json on stdout. Returns the exit status: 0; 1 when `run` fails or
// something is not right; 2, with `usage`, for wrong flags.
int RunMain(const std::string& name, const std::string& usage, Flags flags, int argc, char** argv,
            const std::function<absl::StatusOr<Outcome>()>& run);

}  // namespace ballast::bench
