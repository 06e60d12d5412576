// Structured logger: one record is one line on stderr, as text or as a JSON object.
//   BALLAST_LOG(INFO, LogField("job", name), LogField("round", round)) << "committed";
// Comes from: every room. Goes to: stderr.
// Thread safety: everything here may be called from any thread. A line is never torn by another
// one of this process. Nothing throws; a line that cannot be written is dropped.
#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace ballast {

enum class LogSeverity { kInfo = 0, kWarn = 1, kError = 2 };
enum class LogFormat { kText = 0, kJson = 1 };

// Process-wide settings; main sets them once, before it starts threads that log. Defaults: text
// and kInfo.
void SetLogFormat(LogFormat format);
void SetMinLogSeverity(LogSeverity severity);

// True when a record of this severity would be written.
bool LogEnabled(LogSeverity severity);

// Reads "text" or "json", and "info", "warn" or "error", as written in configuration files.
// INVALID_ARGUMENT names the text and the accepted words.
absl::StatusOr<LogFormat> ParseLogFormat(absl::string_view text);
absl::StatusOr<LogSeverity> ParseLogSeverity(absl::string_view text);

namespace internal {

// Appends `value` to `out` the way a log line shows it.
template <typename T>
void AppendLogValue(std::string* out, const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    out->append(value ? "true" : "false");
  } else if constexpr (std::is_same_v<T, char>) {
    out->push_back(value);
  } else if constexpr (std::is_same_v<T, absl::Status>) {
    out->append(value.ToString());
  } else if constexpr (std::is_convertible_v<T, std::string_view>) {
    out->append(std::string_view(value));
  } else if constexpr (std::is_convertible_v<T, absl::string_view>) {
    const absl::string_view text(value);
    out->append(text.data(), text.size());
  } else if constexpr (std::is_arithmetic_v<T>) {
    absl::StrAppend(out, value);
  } else {
    std::ostringstream stream;
    stream << value;
    out->append(stream.str());
  }
}

}  // namespace internal

// One named value of a record. Numbers and bools stay unquoted in JSON. `key` must outlive the
// logging statement and should be snake_case: job, round, slot, server, extent.
class LogField {
 public:
  template <typename T>
  LogField(absl::string_view key, const T& value)
      : key_(key), literal_(std::is_integral_v<T> && !std::is_same_v<T, char>) {
    // Non-finite numbers have no JSON form and stay quoted strings.
    if constexpr (std::is_floating_point_v<T>) literal_ = std::isfinite(value);
    internal::AppendLogValue(&value_, value);
  }

  absl::string_view key() const { return key_; }
  absl::string_view value() const { return value_; }
  // True when JSON has the value without quotes.
  bool literal() const { return literal_; }

 private:
  absl::string_view key_;
  std::string value_;
  bool literal_;
};

// One record under construction; its destructor writes the line. Made by the macros only.
class LogMessage {
 public:
  LogMessage(LogSeverity severity, const char* file, int line,
             std::initializer_list<LogField> fields, int64_t suppressed = 0);
  ~LogMessage();
  LogMessage(const LogMessage&) = delete;
  LogMessage& operator=(const LogMessage&) = delete;

  template <typename T>
  LogMessage& operator<<(const T& value) {
    internal::AppendLogValue(&text_, value);
    return *this;
  }

 private:
  const LogSeverity severity_;
  const char* const file_;
  const int line_;
  std::string fields_;  // Already rendered in the format of the process.
  std::string text_;
};

// Writes the fields as a JSON object on a line of its own, after the field "time", regardless of
// the process's format and least severity. For lines that programs read.
void WriteJsonLine(const std::vector<LogField>& fields);

namespace internal {

// Gives both arms of the macro's conditional the type void; & binds weaker than <<.
struct LogVoidify {
  void operator&(const LogMessage&) const {}
};

// Remembers when a statement last logged. Thread-safe.
class LogRateLimiter {
 public:
  explicit LogRateLimiter(double period_s);
  // -1 when the period since the last other answer has not passed; else how often the answer was
  // -1 in between.
  int64_t Allow();

 private:
  const int64_t period_ns_;
  std::atomic<int64_t> next_ns_;
  std::atomic<int64_t> suppressed_{0};
};

}  // namespace internal
}  // namespace ballast

#define BALLAST_LOG_SEVERITY_INFO ::ballast::LogSeverity::kInfo
#define BALLAST_LOG_SEVERITY_WARN ::ballast::LogSeverity::kWarn
#define BALLAST_LOG_SEVERITY_ERROR ::ballast::LogSeverity::kError

// BALLAST_LOG(INFO|WARN|ERROR, LogField(...)...) << text. Arguments are evaluated only when the
// severity is enabled.
#define BALLAST_LOG(severity, ...)                                                                 \
  !::ballast::LogEnabled(BALLAST_LOG_SEVERITY_##severity)                                          \
      ? (void)0                                                                                    \
      : ::ballast::internal::LogVoidify() & ::ballast::LogMessage(BALLAST_LOG_SEVERITY_##severity, \
                                                                  __FILE__, __LINE__,              \
                                                                  {__VA_ARGS__})

// As BALLAST_LOG, but this statement writes at most once per `period_s` seconds; the next line
// carries the field suppressed=N when lines were left out.
#define BALLAST_LOG_EVERY(period_s, severity, ...)                                     \
  for (int64_t _ballast_suppressed =                                                   \
           [] {                                                                        \
             static ::ballast::internal::LogRateLimiter limiter(period_s);             \
             return limiter.Allow();                                                   \
           }();                                                                        \
       _ballast_suppressed >= 0; _ballast_suppressed = -1)                             \
  !::ballast::LogEnabled(BALLAST_LOG_SEVERITY_##severity)                              \
      ? (void)0                                                                        \
      : ::ballast::internal::LogVoidify() &                                            \
            ::ballast::LogMessage(BALLAST_LOG_SEVERITY_##severity, __FILE__, __LINE__, \
                                  {__VA_ARGS__}, _ballast_suppressed)
