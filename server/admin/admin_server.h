// One HTTP port for people and machines that watch a server:
//   /metrics  Prometheus text     /healthz  200, or 503 where a restart of the process helps
//   /readyz   200 or 503          /statusz  the server's activity: HTML where the client's
//                                           Accept has text/html, else text; ?format=json, =text
//   /configz  the effective configuration, text or ?format=json
// Read-only. With a token, all pages but the probes and the list of pages ask for it.
// An accept loop in front accepts connections, and hands on those with a whole request: an
// unfinished request takes a descriptor, for a moment, and no thread. Small pages at hand, probes
// above all, are answered by the loop's thread, so that no other request delays them.
// Comes from: ballastd, which supplies the contents. Goes to: server/net; HTTP clients.
// Thread safety: all methods may be called from any thread; callbacks run on the HTTP server's own
// threads, several at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/metrics/registry.h"
#include "common/threads/executor.h"
#include "server/admin/http_request.h"
#include "server/admin/scraper.h"
#include "server/net/accept_loop.h"
#include "server/net/posix_sockets.h"

namespace ballast {

struct AdminServerOptions {
  std::string host = "127.0.0.1";  // An IP address; "[::1]" and bare "::1" both work.
  int port = 0;                    // 0 takes a free one.
  // The bearer token that pages with contents ask for; empty: none.
  std::string token;
  // How long a client may take to send its request, and again to take the answer; then the
  // connection is closed.
  std::chrono::milliseconds request_timeout{1000};
};

// How many pages with contents are made and sent at a time. Clients that do not read them delay
// other such pages, for the time of the option above, and never a probe.
constexpr int kAdminThreads = 32;

// Connections that the port has open at a time, in all and of one address (IPv6: one network of 64
// bits), and new ones of one address in a second.
constexpr server::ConnectionLimits kAdminConnections = {1024, 256, 10000};

// Where the pages come from. Callbacks must not throw or block for long; an empty one leaves its
// page at 404, except `alive` and `ready`: empty means always.
struct AdminPages {
  const MetricRegistry* metrics = nullptr;  // Not owned; outlives the server. Null: 404.
  // OK is 200; the message of an error goes with 503. These two must not block at all.
  std::function<absl::Status()> alive;
  std::function<absl::Status()> ready;
  std::function<std::string(bool json)> status;  // For /statusz.
  std::function<std::string()> status_html;      // The same for browsers; empty: they get text.
  std::function<std::string(bool json)> config;  // For /configz; secrets already masked.
};

class AdminServer {
 public:
  // Binds and serves. INVALID_ARGUMENT: the host is not an IP address or the port is not in
  // 0..65535. UNAVAILABLE: the address cannot be bound; the message has the address and the cause.
  static absl::StatusOr<std::unique_ptr<AdminServer>> Start(const AdminServerOptions& options,
                                                            AdminPages pages);
  // As Stop().
  ~AdminServer();
  AdminServer(const AdminServer&) = delete;
  AdminServer& operator=(const AdminServer&) = delete;

  // The port bound, also when 0 was asked for.
  int port() const { return port_; }

  // Closes the port and returns when no callback runs any more. Idempotent, but not for several
  // threads at once. Must not be called from a callback.
  void Stop();

 private:
  struct Reply {
    int code;
    const char* content_type;
    std::string body;
    std::shared_ptr<const std::string> shared = nullptr;  // The body where several share it.
    const std::string& text() const { return shared == nullptr ? body : *shared; }
  };

  AdminServer(const AdminServerOptions& options, AdminPages pages)
      : token_(options.token),
        request_timeout_(options.request_timeout),
        pages_(std::move(pages)),
        scraper_(pages_.metrics == nullptr ? nullptr : std::make_unique<Scraper>(pages_.metrics)) {}
  // On the loop's thread, with a connection whose request is whole, or too long.
  void Serve(int fd);
  // The answer to a request that needs no page with contents; nothing for the rest.
  std::optional<Reply> AnswerAtOnce(const std::optional<HttpRequest>& request) const;
  // Whether the request may see its path.
  bool Permits(const HttpRequest& request) const;
  enum class Form { kText, kJson, kHtml };
  static Form FormOf(const HttpRequest& request);
  // 200 for OK or an empty `check`; else 503, `word` and the message.
  static Reply Probe(const std::function<absl::Status()>& check, const char* word);
  Reply Answer(const std::string& path, Form form) const;
  // Sends as much as the other side takes within `patience`, and closes.
  void Finish(int fd, const std::string& method, const Reply& reply,
              std::chrono::milliseconds patience) const;

  const std::string token_;  // Empty: none is required.
  const std::chrono::milliseconds request_timeout_;
  const AdminPages pages_;
  const std::unique_ptr<Scraper> scraper_;  // Null without metrics.
  std::atomic<bool> stopping_{false};
  int port_ = 0;
  std::unique_ptr<server::PosixSockets> sockets_;
  std::unique_ptr<Executor> accepting_;  // the loop's thread
  std::unique_ptr<Executor> workers_;    // for pages with contents
  std::unique_ptr<server::AcceptLoop> loop_;
};

}  // namespace ballast
