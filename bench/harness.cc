#include "bench/report.h"

#include <algorithm>
#include <chrono>

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

void JsonObject::Add(const std::string& key, double value) {
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

void Bars::AtLeast(const std::string& key, double value, double bar) {
  Add(key, bar, value >= bar);
}

void Bars::AtMost(const std::string& key, double value, double bar) { Add(key, bar, value <= bar); }

void Bars::Add(const std::string& key, double bar, bool met) {
  bars_.Add(key, bar);
  if (!met) missed_.push_back(absl::StrCat("\"", key, "\""));
}

void Bars::AddTo(JsonObject* json) const {
  json->AddRaw("bars", bars_.Text());
  json->AddRaw("missed", absl::StrCat("[", absl::StrJoin(missed_, ", "), "]"));
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

}  // namespace ballast::bench
