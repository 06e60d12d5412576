#include "server/admin/admin_server.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/system/socket_address.h"
#include "common/threads/thread_executor.h"
#include "server/admin/exposition.h"
#include "server/net/descriptors.h"

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

// "host:port" of the options. INVALID_ARGUMENT when they make no address.
absl::StatusOr<std::string> CheckedAddress(const AdminServerOptions& options) {
  if (options.port < 0 || options.port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("admin port ", options.port, " is not in 0..65535"));
  }
  std::string host = options.host;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  const bool v6 = absl::StrContains(host, ':');
  if (IsIpAddress(host)) {
    return absl::StrCat(v6 ? "[" : "", host, v6 ? "]:" : ":", options.port);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "admin host \"", options.host, "\" is not an IP address; use 127.0.0.1, ::1 or 0.0.0.0"));
}

// Bytes not taken within this time mean that the other side is gone.
constexpr std::chrono::seconds kUserTimeout(10);
// How long a thread that sends sleeps at most before it looks whether the port closes.
constexpr std::chrono::milliseconds kLookUp(50);
// Bytes read from a client that still sends after its answer, before the connection is closed.
constexpr size_t kLeftoverBytesMax = 65536;

// A request is handed on when complete or too long.
server::FirstBytes JudgeRequest(absl::string_view bytes) {
  using server::ConnectionRefusal;
  using server::Opening;
  if (bytes.empty()) return {Opening::kMore, ConnectionRefusal::kGarbage};
  if (bytes[0] == '\x16') return {Opening::kBad, ConnectionRefusal::kTls};
  if (!absl::ascii_isupper(static_cast<unsigned char>(bytes[0]))) {
    return {Opening::kBad, ConnectionRefusal::kGarbage};
  }
  const bool whole = absl::StrContains(bytes, kRequestHeadEnd);
  const bool full = bytes.size() >= kRequestHeadBytesMax;
  return {whole || full ? Opening::kGood : Opening::kMore, ConnectionRefusal::kGarbage};
}

// Bytes received so far, as far as a head may reach.
std::string ReadHead(int fd) {
  std::string head(kRequestHeadBytesMax, '\0');
  const ssize_t got = recv(fd, head.data(), head.size(), MSG_DONTWAIT);
  head.resize(static_cast<size_t>(std::max<ssize_t>(0, got)));
  return head;
}

// Ends the connection so that the answer arrives: with bytes unread, the kernel would discard it.
void Close(int fd) {
  shutdown(fd, SHUT_WR);
  std::array<char, 4096> rest;
  for (size_t read = 0; read < kLeftoverBytesMax;) {
    const ssize_t got = recv(fd, rest.data(), rest.size(), MSG_DONTWAIT);
    if (got <= 0) break;
    read += static_cast<size_t>(got);
  }
  close(fd);
}

const char* CodeText(int code) {
  switch (code) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    default:
      return "Service Unavailable";
  }
}

// Takes the same time for each `given` of one length, so that timing does not show how much of it
// is right.
bool EqualInConstantTime(absl::string_view given, absl::string_view wanted) {
  unsigned char differs = given.size() == wanted.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    differs |= static_cast<unsigned char>(given[i] ^ wanted[i % wanted.size()]);
  }
  return differs == 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<AdminServer>> AdminServer::Start(const AdminServerOptions& options,
                                                                AdminPages pages) {
  BALLAST_ASSIGN_OR_RETURN(const std::string address, CheckedAddress(options));
  std::unique_ptr<AdminServer> server(new AdminServer(options, std::move(pages)));
  BALLAST_ASSIGN_OR_RETURN(server->sockets_, server::PosixSockets::Listen(address, kUserTimeout));
  server->port_ = server->sockets_->port();
  server->accepting_ = std::make_unique<ThreadExecutor>("admin-accept", 1);
  server->workers_ = std::make_unique<ThreadExecutor>("admin", kAdminThreads);
  server::AcceptOptions accept;
  accept.limits = kAdminConnections;
  accept.judge = JudgeRequest;
  accept.judged_bytes = kRequestHeadBytesMax;
  accept.port = "admin port";
  accept.first_bytes = options.request_timeout;
  // Probes are answered while calls hold all descriptors of theirs.
  const int limit = server::DescriptorLimit();
  accept.descriptor_end = (server::ConnectionDescriptorEnd(limit) + limit) / 2;
  server->loop_ = std::make_unique<server::AcceptLoop>(
      accept, server->sockets_.get(), RealClock::Get(), server->accepting_.get(), nullptr,
      [raw = server.get()](int fd) { raw->Serve(fd); });
  server->loop_->Start();
  return server;
}

AdminServer::~AdminServer() { Stop(); }

void AdminServer::Stop() {
  if (sockets_ == nullptr) return;
  stopping_ = true;
  loop_->Stop();
  workers_->Shutdown();
  sockets_.reset();
}

void AdminServer::Serve(int fd) {
  std::optional<HttpRequest> request = ParseRequestHead(ReadHead(fd));
  const std::optional<Reply> reply = AnswerAtOnce(request);
  if (reply.has_value()) {
    const std::string method = request.has_value() ? request->method : "";
    return Finish(fd, method, *reply, std::chrono::milliseconds::zero());
  }
  const bool posted = workers_->Post([this, fd, request = *std::move(request)] {
    Finish(fd, request.method, Answer(request.path, FormOf(request)), request_timeout_);
  });
  if (!posted) close(fd);
}

std::optional<AdminServer::Reply> AdminServer::AnswerAtOnce(
    const std::optional<HttpRequest>& request) const {
  if (!request.has_value()) return Reply{400, kText, "this is no request of HTTP/1 for a page\n"};
  if (request->method != "GET" && request->method != "HEAD") {
    return Reply{405, kText, "only GET and HEAD are served here\n"};
  }
  const std::string& path = request->path;
  if (path == "/") return Reply{200, kText, kIndex};
  if (path == "/healthz") return Probe(pages_.alive, "not alive");
  if (path == "/readyz") return Probe(pages_.ready, "not ready");
  if (Permits(*request)) return std::nullopt;
  return Reply{401, kText, "this page needs the header Authorization: Bearer <admin.token_file>\n"};
}

void AdminServer::Finish(int fd, const std::string& method, const Reply& reply,
                         std::chrono::milliseconds patience) const {
  std::string bytes = absl::StrCat(
      "HTTP/1.1 ", reply.code, " ", CodeText(reply.code), "\r\nContent-Type: ", reply.content_type,
      "\r\nContent-Length: ", reply.text().size(),
      "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nVary: Accept",
      // Others' names and error texts are escaped; this protects even where an escape is missing.
      "\r\nContent-Security-Policy: default-src 'none'; style-src 'unsafe-inline'",
      reply.code == 405 ? "\r\nAllow: GET, HEAD" : "",
      reply.code == 401 ? "\r\nWWW-Authenticate: Bearer" : "", "\r\nConnection: close\r\n\r\n");
  if (method != "HEAD") bytes += reply.text();
  const std::chrono::nanoseconds deadline = RealClock::Get()->Now() + patience;
  for (absl::string_view rest = bytes; !rest.empty() && !stopping_;) {
    const ssize_t sent = send(fd, rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      rest.remove_prefix(static_cast<size_t>(sent));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN || RealClock::Get()->Now() >= deadline) break;
    pollfd writable = {fd, POLLOUT, 0};
    (void)poll(&writable, 1, static_cast<int>(kLookUp.count()));
  }
  Close(fd);
}

bool AdminServer::Permits(const HttpRequest& request) const {
  return token_.empty() ||
         EqualInConstantTime(request.authorization, absl::StrCat("Bearer ", token_));
}

AdminServer::Form AdminServer::FormOf(const HttpRequest& request) {
  if (request.format == "json") return Form::kJson;
  const bool browser = absl::StrContains(request.accept, "text/html");
  return request.format == "html" || (request.format.empty() && browser) ? Form::kHtml
                                                                         : Form::kText;
}

AdminServer::Reply AdminServer::Probe(const std::function<absl::Status()>& check,
                                      const char* word) {
  const absl::Status status = check ? check() : absl::OkStatus();
  if (status.ok()) return {200, kText, "ok\n"};
  return {503, kText, absl::StrCat(word, ": ", status.message(), "\n")};
}

AdminServer::Reply AdminServer::Answer(const std::string& path, Form form) const {
  const bool json = form == Form::kJson;
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
