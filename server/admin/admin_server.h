// One HTTP port for people and machines that watch a server:
//   /metrics  Prometheus text     /healthz  200, or 503 where a restart of the process helps
//   /readyz   200 or 503          /statusz  what the server is doing: HTML where the client's
//                                           Accept has text/html, else text; ?format=json, =text
//   /configz  the effective configuration, text or ?format=json
// Read-only. With a token, all pages but the probes and the list of pages ask for it.
// Comes from: ballastd, which supplies the contents. Goes to: HTTP clients.
// Thread safety: all methods may be called from any thread; callbacks run on the HTTP server's own
// threads, several at a time.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/metrics/registry.h"
#include "server/admin/scraper.h"

struct mg_connection;
struct mg_context;

namespace ballast {

struct AdminOptions {
  std::string host = "127.0.0.1";  // An IP address; "[::1]" and bare "::1" both work.
  int port = 0;                    // 0 takes a free one.
  // The bearer token that pages with contents ask for; empty: none.
  std::string token;
  // How long a client may take to send its request; then it is hung up on.
  std::chrono::milliseconds request_timeout{1000};
};

// How many requests are read and answered at a time. Only as many that are never finished hold up
// the others, for the time of the option above.
constexpr int kAdminThreads = 32;

// Where the pages come from. Callbacks must not throw or block for long; an empty one leaves its
// page at 404, except `alive` and `ready`: empty means always.
struct AdminPages {
  const MetricRegistry* metrics = nullptr;  // Not owned; outlives the server. Null: 404.
  std::function<absl::Status()> alive;      // OK is 200; the message of an error goes with 503.
  std::function<absl::Status()> ready;      // OK is 200; the message of an error goes with 503.
  std::function<std::string(bool json)> status;  // For /statusz.
  std::function<std::string()> status_html;      // The same for browsers; empty: they get text.
  std::function<std::string(bool json)> config;  // For /configz; secrets already masked.
};

class AdminServer {
 public:
  // Binds and serves. INVALID_ARGUMENT: the host is not an IP address or the port is not in
  // 0..65535. UNAVAILABLE: the address cannot be bound; the message has the address and the cause.
  static absl::StatusOr<std::unique_ptr<AdminServer>> Start(const AdminOptions& options,
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

  AdminServer(std::string host, std::string token, AdminPages pages)
      : host_(std::move(host)),
        token_(std::move(token)),
        pages_(std::move(pages)),
        scraper_(pages_.metrics == nullptr ? nullptr : std::make_unique<Scraper>(pages_.metrics)) {}
  // Whether the request may see `path`.
  bool Permits(mg_connection* connection, const std::string& path) const;
  static int HandleRequest(mg_connection* connection, void* self);
  enum class Form { kText, kJson, kHtml };
  static Form FormOf(mg_connection* connection, const char* query);
  // 200 for OK or an empty `check`; else 503, `word` and the message.
  static Reply Probe(const std::function<absl::Status()>& check, const char* word);
  Reply Answer(const std::string& path, Form form) const;

  const std::string host_;   // An IP address without brackets.
  const std::string token_;  // Empty: none is asked for.
  const AdminPages pages_;
  const std::unique_ptr<Scraper> scraper_;  // Null without metrics.
  mg_context* context_ = nullptr;
  int port_ = 0;
};

}  // namespace ballast
