#include "server/status_pages.h"

#include <chrono>
#include <future>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/text/inert.h"
#include "google/protobuf/util/json_util.h"
#include "server/config/print.h"
#include "server/listen.h"
#include "server/status/status_page.h"
#include "server/status/status_problems.h"
#include "server/status/status_text.h"

namespace ballast::server {
namespace {

// How long a page waits for the jobs' strands.
constexpr std::chrono::seconds kStatusWait(2);
// How much history it shows: rounds of each job, and records of the log.
constexpr uint32_t kStatusRounds = 8;
constexpr uint32_t kStatusEvents = 50;

}  // namespace

std::optional<v1::StatusReply> StatusPages::Look() const {
  // The callback may run after the wait is over, so both share the promise.
  const auto promise = std::make_shared<std::promise<v1::StatusReply>>();
  std::future<v1::StatusReply> future = promise->get_future();
  v1::StatusRequest request;
  request.set_rounds(kStatusRounds);
  request.set_events(kStatusEvents);
  CollectStatus(*directory_, facts_(), request, Caller(),
                [promise](v1::StatusReply reply) { promise->set_value(std::move(reply)); });
  if (future.wait_for(kStatusWait) != std::future_status::ready) return std::nullopt;
  return future.get();
}

std::string StatusPages::Status(bool json) const {
  const std::optional<v1::StatusReply> reply = Look();
  if (!reply.has_value()) {
    return json ? "{\"error\": \"the jobs do not answer\"}\n" : "the jobs do not answer\n";
  }
  if (json) return StatusJson({*reply});
  const std::string warning = OpenNetworkWarning(loaded_->config, reply->address());
  return Inert(absl::StrCat(VerdictOf(*reply).text, "\n", warning, warning.empty() ? "" : "\n",
                            "\n", StatusTable({*reply})));
}

std::string StatusPages::StatusForBrowsers() const {
  const std::optional<v1::StatusReply> reply = Look();
  if (!reply.has_value()) return "<p>the jobs do not answer</p>\n";
  return StatusHtml(*reply, OpenNetworkWarning(loaded_->config, reply->address()));
}

std::string StatusPages::Config(bool json) const {
  if (!json) return config::Print(*loaded_);
  std::string text;
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  const bool written =
      google::protobuf::util::MessageToJsonString(loaded_->config, &text, options).ok();
  return written ? text + "\n" : "{}\n";
}

}  // namespace ballast::server
