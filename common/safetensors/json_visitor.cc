#include "common/safetensors/json_visitor.h"

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/text/names.h"

namespace ballast {
namespace {

// Hands nlohmann-json's events on; false ends the parse. Its names are those that the parser wants.
class Events {
 public:
  using Json = nlohmann::json;

  explicit Events(JsonVisitor* visitor) : visitor_(visitor) {}

  bool null() { return Go(visitor_->Other("null")); }
  bool boolean(bool value) { return Go(visitor_->Other(value ? "true" : "false")); }
  bool number_integer(Json::number_integer_t value) {
    return Go(visitor_->Other(value == 0 ? std::string("-0") : absl::StrCat(value)));
  }
  bool number_unsigned(Json::number_unsigned_t value) { return Go(visitor_->Number(value)); }
  bool number_float(Json::number_float_t /*value*/, const std::string& text) {
    constexpr size_t kShownBytes = 40;
    return Go(visitor_->Other(absl::string_view(text).substr(0, kShownBytes)));
  }
  bool string(const std::string& value) { return Go(visitor_->String(value)); }
  bool binary(const Json::binary_t& /*value*/) { return Go(visitor_->Other("binary")); }
  bool start_object(size_t /*unknown*/) { return Go(visitor_->BeginObject()); }
  bool key(const std::string& name) { return Go(visitor_->Key(name)); }
  bool end_object() { return Go(visitor_->EndObject()); }
  bool start_array(size_t /*unknown*/) { return Go(visitor_->BeginArray()); }
  bool end_array() { return Go(visitor_->EndArray()); }
  bool parse_error(size_t byte, const std::string& last, const nlohmann::detail::exception& error) {
    // 406: a number, syntactically right but too large for a double.
    return Go(absl::InvalidArgumentError(
        absl::StrCat(error.id == 406 ? "a number is out of range at byte " : "no JSON at byte ",
                     byte, ", near ", Quoted(last))));
  }

  absl::Status TakeStatus() { return std::move(status_); }

 private:
  bool Go(absl::Status status) {
    status_ = std::move(status);
    return status_.ok();
  }

  JsonVisitor* const visitor_;
  absl::Status status_;
};

}  // namespace

absl::Status VisitJson(absl::string_view text, JsonVisitor* visitor) {
  // The parser takes a byte 0 for the end of its input, and ignores all bytes after it.
  if (const size_t zero = text.find('\0'); zero != absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat("no JSON at byte ", zero + 1, ": a byte 0"));
  }
  Events events(visitor);
  nlohmann::json::sax_parse(text.data(), text.data() + text.size(), &events);
  return events.TakeStatus();
}

void AppendJsonString(absl::string_view text, std::string* json) {
  json->push_back('"');
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20) {
      absl::StrAppend(json, "\\u", absl::Hex(byte, absl::kZeroPad4));
    } else {
      if (c == '"' || c == '\\') json->push_back('\\');
      json->push_back(c);
    }
  }
  json->push_back('"');
}

}  // namespace ballast
