// What the benchmark programs share: the clock, medians, and the one JSON object they print with
// its bars and what missed them.
// Comes from: log_bench, recovery_bench, round_bench. Goes to: stdout, by their hands.
// Thread safety: pure functions; the classes are plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ballast::bench {

// Seconds of a clock that never goes back.
double Now();

// The middle value, or the mean of the two in the middle; 0 for none.
double Median(std::vector<double> values);
// The smallest and the largest, as "0.71-0.93": how far apart the repetitions were.
std::string Spread(const std::vector<double>& values);

// Writes one JSON object, in the order of the calls.
class JsonObject {
 public:
  void Add(const std::string& key, double value);
  void Add(const std::string& key, const std::string& text);
  void Add(const std::string& key, bool value);
  void AddRaw(const std::string& key, const std::string& json);
  std::string Text() const;

 private:
  std::string text_;
};

// The bars of a benchmark, and which keys missed theirs.
class Bars {
 public:
  void AtLeast(const std::string& key, double value, double bar);
  void AtMost(const std::string& key, double value, double bar);
  bool met() const { return missed_.empty(); }
  // Adds "bars" and "missed".
  void AddTo(JsonObject* json) const;

 private:
  void Add(const std::string& key, double bar, bool met);

  JsonObject bars_;
  std::vector<std::string> missed_;
};

// `text` as a number between `least` and `most`; false when it is not.
bool ParseNumber(const std::string& text, uint64_t least, uint64_t most, uint64_t* value);
bool ParseNumber(const std::string& text, int least, int most, int* value);
bool ParseNumber(const std::string& text, double least, double most, double* value);

}  // namespace ballast::bench
