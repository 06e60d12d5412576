// AdminServer on CivetWeb's C interface, which reports errors without exceptions; see
// admin_server.h.
// Thread safety: pages_ is constant; CivetWeb's threads only read it.
#include "server/admin/admin_server.h"

#include <civetweb.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/socket_address.h"
#include "common/base/status_macros.h"
#include "common/base/thread_executor.h"
#include "server/admin/exposition.h"

namespace ballast {
namespace {

constexpr char kText[] = "text/plain; charset=utf-8";
constexpr char kJson[] = "application/json";
constexpr char kHtml[] = "text/html; charset=utf-8";
constexpr char kIndex[] =
    "Ballast server\n"
    "/metrics   Prometheus metrics\n"
    "/healthz   200, or 503 and the reason when only a restart helps\n"
    "/readyz    200 when it takes work, else 503 and the reason\n"
    "/statusz   what it is doing; HTML for browsers, ?format=json for machines\n"
    "/configz   effective configuration; ?format=json for machines\n";

// The host of the options without brackets. INVALID_ARGUMENT when the options make no address;
// this also keeps CivetWeb's own syntax (lists, suffixes) out of the string it gets.
absl::StatusOr<std::string> CheckedHost(const AdminOptions& options) {
  if (options.port < 0 || options.port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("admin port ", options.port, " is not in 0..65535"));
  }
  std::string host = options.host;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  if (IsIpAddress(host)) return host;
  return absl::InvalidArgumentError(absl::StrCat(
      "admin host \"", options.host, "\" is not an IP address; use 127.0.0.1, ::1 or 0.0.0.0"));
}

// Begins a connection and drops it.
void Touch(const std::string& host, int port) {
  // Whether it succeeds does not matter: the caller tries until it sees the effect.
  if (const int fd = BeginConnect(host, port); fd >= 0) close(fd);
}

// The value of ?format=; empty without, and for one that is too long to be known.
std::string FormatOf(const char* query) {
  if (query == nullptr) return "";
  const absl::string_view text(query);
  std::array<char, 8> format{};
  const int length = mg_get_var(text.data(), text.size(), "format", format.data(), format.size());
  return length > 0 ? format.data() : "";
}

// Takes as long for each `given` of one length, so that no time tells how much of it is right.
bool EqualInConstantTime(absl::string_view given, absl::string_view wanted) {
  unsigned char differs = given.size() == wanted.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    differs |= static_cast<unsigned char>(given[i] ^ wanted[i % wanted.size()]);
  }
  return differs == 0;
}

// CivetWeb prints its complaints here; they reach the caller as a status instead.
int IgnoreLogMessage(const mg_connection*, const char*) { return 1; }

}  // namespace

absl::StatusOr<std::unique_ptr<AdminServer>> AdminServer::Start(const AdminOptions& options,
                                                                AdminPages pages) {
  BALLAST_ASSIGN_OR_RETURN(std::string host, CheckedHost(options));
  const bool v6 = host.find(':') != std::string::npos;
  const std::string address = absl::StrCat(v6 ? "[" : "", host, v6 ? "]:" : ":", options.port);
  std::unique_ptr<AdminServer> server(
      new AdminServer(std::move(host), options.token, std::move(pages)));

  // Many threads and a short timeout: a client that never finishes its request holds one of them
  // for a moment, and a probe still finds another.
  const std::string threads = absl::StrCat(kAdminThreads);
  const std::string timeout_ms = absl::StrCat(options.request_timeout.count());
  const std::array<const char*, 7> settings = {
      "listening_ports",    address.c_str(),    "num_threads", threads.c_str(),
      "request_timeout_ms", timeout_ms.c_str(), nullptr};
  mg_callbacks callbacks{};
  callbacks.log_message = IgnoreLogMessage;
  mg_init_data init{};
  init.callbacks = &callbacks;
  init.user_data = server.get();
  init.configuration_options = const_cast<const char**>(settings.data());
  std::array<char, 256> text{};
  unsigned code = 0;
  mg_error_data error{&code, text.data(), text.size()};
  server->context_ = mg_start2(&init, &error);
  if (server->context_ == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot serve admin pages on ", address, ": ",
                                               text.data(), "; is the port taken?"));
  }
  mg_set_request_handler(server->context_, "**", HandleRequest, server.get());
  mg_server_port bound{};
  if (mg_get_server_ports(server->context_, 1, &bound) != 1) {
    return absl::InternalError(absl::StrCat("no bound port is known for ", address));
  }
  server->port_ = bound.port;
  return server;
}

AdminServer::~AdminServer() { Stop(); }

void AdminServer::Stop() {
  if (context_ == nullptr) return;
  // CivetWeb's accept loop looks at its stop flag every two seconds, or after a connection.
  std::atomic<bool> stopped{false};
  ThreadExecutor waker("admin-waker", 1);
  waker.Post([&] {
    while (!stopped) {
      Touch(host_, port_);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  mg_stop(std::exchange(context_, nullptr));
  stopped = true;
  waker.Shutdown();
}

int AdminServer::HandleRequest(mg_connection* connection, void* self) {
  const mg_request_info* request = mg_get_request_info(connection);
  const absl::string_view method(request->request_method);
  Reply reply{405, kText, "only GET and HEAD are served here\n"};
  const bool read = method == "GET" || method == "HEAD";
  if (read && !static_cast<const AdminServer*>(self)->Permits(connection, request->local_uri)) {
    reply = {401, kText, "this page needs the header Authorization: Bearer <admin.token_file>\n"};
  } else if (read) {
    reply = static_cast<const AdminServer*>(self)->Answer(
        request->local_uri, FormOf(connection, request->query_string));
  }
  const std::string header = absl::StrCat(
      "HTTP/1.1 ", reply.code, " ", mg_get_response_code_text(connection, reply.code),
      "\r\nContent-Type: ", reply.content_type, "\r\nContent-Length: ", reply.text().size(),
      "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nVary: Accept",
      // Names and error texts of others are escaped; this holds even where one slips through.
      "\r\nContent-Security-Policy: default-src 'none'; style-src 'unsafe-inline'",
      reply.code == 405 ? "\r\nAllow: GET, HEAD" : "",
      reply.code == 401 ? "\r\nWWW-Authenticate: Bearer" : "", "\r\nConnection: close\r\n\r\n");
  mg_write(connection, header.data(), header.size());
  if (method != "HEAD") mg_write(connection, reply.text().data(), reply.text().size());
  return reply.code;
}

bool AdminServer::Permits(mg_connection* connection, const std::string& path) const {
  if (token_.empty() || path == "/" || path == "/healthz" || path == "/readyz") return true;
  const char* header = mg_get_header(connection, "Authorization");
  return header != nullptr && EqualInConstantTime(header, absl::StrCat("Bearer ", token_));
}

AdminServer::Form AdminServer::FormOf(mg_connection* connection, const char* query) {
  const std::string format = FormatOf(query);
  if (format == "json") return Form::kJson;
  const char* accept = mg_get_header(connection, "Accept");
  const bool browser = accept != nullptr && absl::StrContains(accept, "text/html");
  return format == "html" || (format.empty() && browser) ? Form::kHtml : Form::kText;
}

AdminServer::Reply AdminServer::Probe(const std::function<absl::Status()>& check,
                                      const char* word) {
  const absl::Status status = check ? check() : absl::OkStatus();
  if (status.ok()) return {200, kText, "ok\n"};
  return {503, kText, absl::StrCat(word, ": ", status.message(), "\n")};
}

AdminServer::Reply AdminServer::Answer(const std::string& path, Form form) const {
  const bool json = form == Form::kJson;
  if (path == "/") return {200, kText, kIndex};
  if (path == "/healthz") return Probe(pages_.alive, "not alive");
  if (path == "/readyz") return Probe(pages_.ready, "not ready");
  if (path == "/metrics" && scraper_ != nullptr) {
    return {200, kExpositionContentType, "", scraper_->Page()};
  }
  if (path == "/statusz" && form == Form::kHtml && pages_.status_html) {
    return {200, kHtml, pages_.status_html()};
  }
  if (path == "/statusz" && pages_.status) return {200, json ? kJson : kText, pages_.status(json)};
  if (path == "/configz" && pages_.config) return {200, json ? kJson : kText, pages_.config(json)};
  return {404, kText, "no such page; see /\n"};
}

}  // namespace ballast
