// Renders log records and writes them to stderr; see log.h.
// Thread safety: settings are atomics, a mutex keeps lines whole.
#include "common/base/log.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/recent_log.h"
#include "common/base/sync.h"
#include "common/base/utf8.h"

namespace ballast {
namespace {

std::atomic<LogFormat> g_format{LogFormat::kText};
std::atomic<LogSeverity> g_min_severity{LogSeverity::kInfo};

// Never destroyed: threads may still log while the process ends.
Mutex& WriteMutex() {
  static Mutex* const mu = new Mutex;
  return *mu;
}

absl::string_view SeverityName(LogSeverity severity) {
  switch (severity) {
    case LogSeverity::kInfo:
      return "INFO";
    case LogSeverity::kWarn:
      return "WARN";
    case LogSeverity::kError:
      return "ERROR";
  }
  return "ERROR";
}

timespec Now() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return now;
}

// UTC with microseconds, ISO 8601.
std::string TimeText(const timespec& now) {
  tm parts{};
  gmtime_r(&now.tv_sec, &parts);
  return absl::StrFormat("%04d-%02d-%02dT%02d:%02d:%02d.%06dZ", parts.tm_year + 1900,
                         parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                         now.tv_nsec / 1000);
}

// Appends `text` with control characters, backslashes and broken UTF-8 escaped so that it stays on
// one line; quotes too when `quotes`.
void AppendEscaped(std::string* out, absl::string_view text, bool quotes) {
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    const char c = text[0];
    if (length == 0) {
      out->append("\\ufffd");
    } else if (c == '\n') {
      out->append("\\n");
    } else if (c == '\t') {
      out->append("\\t");
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      absl::StrAppendFormat(out, "\\u%04x", static_cast<unsigned>(c));
    } else if (quotes && (c == '"' || c == '\\')) {
      out->push_back('\\');
      out->push_back(c);
    } else {
      out->append(text.data(), length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
}

void AppendQuoted(std::string* out, absl::string_view text) {
  out->push_back('"');
  AppendEscaped(out, text, /*quotes=*/true);
  out->push_back('"');
}

void AppendField(std::string* out, const LogField& field, LogFormat format) {
  if (format == LogFormat::kJson) {
    out->push_back(',');
    AppendQuoted(out, field.key());
    out->push_back(':');
  } else {
    absl::StrAppend(out, " ", field.key(), "=");
  }
  if (field.literal()) {
    absl::StrAppend(out, field.value());
  } else {
    AppendQuoted(out, field.value());
  }
}

// One write per line as far as the system allows; a line that cannot be written is dropped, for
// there is no other place to report it.
void WriteLine(absl::string_view line) {
  MutexLock lock(&WriteMutex());
  while (!line.empty()) {
    const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    line.remove_prefix(static_cast<size_t>(written));
  }
}

const char* BaseName(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash != nullptr ? slash + 1 : path;
}

int64_t MonotonicNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

// `line`: the text, escaped without quotes. `fields`: as rendered in the format of the process,
// with their separator from the text.
void Remember(const timespec& now, LogSeverity severity, std::string line,
              absl::string_view fields) {
  LogRecord record;
  record.time_us = int64_t{now.tv_sec} * 1000000 + now.tv_nsec / 1000;
  record.severity = SeverityName(severity).data();
  record.text = std::move(line);
  if (!fields.empty()) absl::StrAppend(&record.text, " ", fields.substr(1));
  ProcessLog().Add(std::move(record));
}

}  // namespace

void SetLogFormat(LogFormat format) { g_format.store(format, std::memory_order_relaxed); }

void SetMinLogSeverity(LogSeverity severity) {
  g_min_severity.store(severity, std::memory_order_relaxed);
}

bool LogEnabled(LogSeverity severity) {
  return severity >= g_min_severity.load(std::memory_order_relaxed);
}

absl::StatusOr<LogFormat> ParseLogFormat(absl::string_view text) {
  if (text == "text") return LogFormat::kText;
  if (text == "json") return LogFormat::kJson;
  return absl::InvalidArgumentError(
      absl::StrCat("log format \"", text, "\" is not known; use text or json"));
}

absl::StatusOr<LogSeverity> ParseLogSeverity(absl::string_view text) {
  if (text == "info") return LogSeverity::kInfo;
  if (text == "warn") return LogSeverity::kWarn;
  if (text == "error") return LogSeverity::kError;
  return absl::InvalidArgumentError(
      absl::StrCat("log severity \"", text, "\" is not known; use info, warn or error"));
}

LogMessage::LogMessage(LogSeverity severity, const char* file, int line,
                       std::initializer_list<LogField> fields, int64_t suppressed)
    : severity_(severity), file_(BaseName(file)), line_(line) {
  const LogFormat format = g_format.load(std::memory_order_relaxed);
  for (const LogField& field : fields) AppendField(&fields_, field, format);
  if (suppressed > 0) AppendField(&fields_, LogField("suppressed", suppressed), format);
}

LogMessage::~LogMessage() {
  // Rendering allocates; out of memory loses the line, not the process.
  try {
    std::string out;
    std::string line;
    const timespec now = Now();
    AppendEscaped(&line, text_, /*quotes=*/false);
    if (g_format.load(std::memory_order_relaxed) == LogFormat::kJson) {
      absl::StrAppend(&out, "{\"time\":\"", TimeText(now), "\",\"severity\":\"",
                      SeverityName(severity_), "\",\"source\":\"", file_, ":", line_,
                      "\",\"message\":");
      AppendQuoted(&out, text_);
      absl::StrAppend(&out, fields_, "}\n");
    } else {
      absl::StrAppend(&out, TimeText(now), " ", SeverityName(severity_), " ", file_, ":", line_,
                      " ", line, fields_, "\n");
    }
    Remember(now, severity_, std::move(line), fields_);
    WriteLine(out);
  } catch (...) {
  }
}

void WriteJsonLine(const std::vector<LogField>& fields) {
  try {
    std::string out = absl::StrCat("{\"time\":\"", TimeText(Now()), "\"");
    for (const LogField& field : fields) AppendField(&out, field, LogFormat::kJson);
    absl::StrAppend(&out, "}\n");
    WriteLine(out);
  } catch (...) {
  }
}

namespace internal {

LogRateLimiter::LogRateLimiter(double period_s)
    : period_ns_(static_cast<int64_t>(period_s * 1e9)), next_ns_(MonotonicNs()) {}

int64_t LogRateLimiter::Allow() {
  const int64_t now = MonotonicNs();
  int64_t next = next_ns_.load(std::memory_order_relaxed);
  // Losing the exchange means that another thread logs now.
  if (now >= next && next_ns_.compare_exchange_strong(next, now + period_ns_)) {
    return suppressed_.exchange(0, std::memory_order_relaxed);
  }
  suppressed_.fetch_add(1, std::memory_order_relaxed);
  return -1;
}

}  // namespace internal
}  // namespace ballast
