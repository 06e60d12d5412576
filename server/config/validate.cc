// Rules that span fields. See validate.h.
#include "server/config/validate.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/text/address.h"
#include "common/text/names.h"
#include "common/text/units.h"
#include "server/config/error_list.h"
#include "server/config/fields.h"

namespace ballast::config {
namespace {

// A frame's header is far below this; the room keeps chunk and frame limits in simple numbers.
constexpr int64_t kFrameHeaderRoom = 4096;
constexpr size_t kMaxPeers = 1024;

std::string Duration(int64_t ns) { return FormatDuration(std::chrono::nanoseconds(ns)); }

// SPIFFE's rule, with its limit cut to that of a tenant's name.
bool IsTrustDomain(absl::string_view domain) {
  constexpr size_t kMaxBytes = 128;
  const auto inside = [](char c) {
    return absl::ascii_islower(static_cast<unsigned char>(c)) ||
           absl::ascii_isdigit(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  };
  return !domain.empty() && domain.size() <= kMaxBytes &&
         absl::ascii_isalnum(static_cast<unsigned char>(domain[0])) &&
         std::all_of(domain.begin(), domain.end(), inside);
}

class Checker {
 public:
  explicit Checker(const ServerConfig& config) : config_(config) {}

  std::vector<Violation> Run() {
    CheckRules();
    CheckListen();
    CheckAdmin();
    CheckCluster();
    CheckStorage();
    CheckRounds();
    CheckRpcMemory();
    CheckAio();
    CheckTiming();
    CheckSecurity();
    return std::move(violations_);
  }

  std::vector<Violation> RunPeers(const std::vector<Peer>& peers) {
    if (peers.empty()) Add("peers", "the list is empty; name every server, this one included");
    CheckPeers("peers", peers);
    return std::move(violations_);
  }

 private:
  void Add(absl::string_view path, absl::string_view message) {
    violations_.push_back({std::string(path), std::string(message)});
  }

  void CheckRules() {
    for (const Leaf& leaf : Leaves()) {
      if (leaf.field->is_repeated()) continue;
      const Message& message = leaf.section == nullptr
                                   ? config_
                                   : config_.GetReflection()->GetMessage(config_, leaf.section);
      const absl::Status status = CheckRule(message, leaf.field);
      if (!status.ok()) Add(leaf.path, status.message());
    }
  }

  // Parses an address; `port_needed` refuses port 0. Adds its faults to the list.
  absl::StatusOr<HostPort> CheckAddress(const std::string& path, const std::string& text,
                                        bool port_needed) {
    absl::StatusOr<HostPort> address = ParseHostPort(text);
    if (!address.ok()) {
      Add(path, address.status().message());
      return address;
    }
    if (port_needed && address->port == 0) {
      Add(path, "port 0 cannot be reached; give the port others connect to");
    }
    if (!config_.listen().insecure_network() && !IsLoopback(address->host)) {
      CheckSecured(path, text);
    }
    return address;
  }

  // Of an address that others than this machine reach.
  void CheckSecured(const std::string& path, const std::string& text) {
    const bool admin = path == "admin.address";
    const bool secured = admin ? !config_.admin().token_file().empty()
                               : config_.security().mode() == v1::SECURITY_MODE_TLS;
    if (secured) return;
    Add(path, absl::StrCat(Quoted(text),
                           " is not a loopback address, and callers prove nothing there; set ",
                           admin ? "admin.token_file" : "security.mode: tls",
                           ", or on a network you trust listen.insecure_network: true"));
  }

  void CheckListen() {
    const v1::Listen& listen = config_.listen();
    const auto bound = CheckAddress("listen.address", listen.address(), false);
    if (!listen.advertise_address().empty()) {
      const auto told = CheckAddress("listen.advertise_address", listen.advertise_address(), true);
      if (told.ok() && IsWildcard(told->host)) {
        Add("listen.advertise_address", "a wildcard cannot be reached; give this host's address");
      }
    } else if (bound.ok() && IsWildcard(bound->host)) {
      Add("listen.advertise_address",
          absl::StrCat("must be set, because others cannot reach listen.address ",
                       Quoted(listen.address())));
    }
  }

  void CheckAdmin() {
    if (config_.admin().enabled()) {
      (void)CheckAddress("admin.address", config_.admin().address(), false);
    }
  }

  void CheckCluster() {
    const v1::Cluster& cluster = config_.cluster();
    const absl::Status name = ValidateName("cluster name", cluster.name());
    if (!name.ok()) Add("cluster.name", name.message());
    if (cluster.peers().empty()) return;
    if (!cluster.peers_file().empty()) {
      Add("cluster.peers_file", "excludes cluster.peers; remove one of them");
    }
    const absl::StatusOr<HostPort> bound = ParseHostPort(config_.listen().address());
    if (bound.ok() && bound->port == 0) {
      Add("listen.address",
          "port 0 is not known to the others; with cluster.peers give the port that stands there, "
          "or use cluster.peers_file");
    }
    CheckPeers("cluster.peers", {cluster.peers().begin(), cluster.peers().end()});
  }

  void CheckPeers(const std::string& list, const std::vector<Peer>& peers) {
    if (peers.size() > kMaxPeers) {
      Add(list, absl::StrCat(peers.size(), " servers are above the maximum ", kMaxPeers));
      return;
    }
    std::map<uint32_t, size_t> ids;
    std::map<std::string, size_t> addresses;
    for (size_t i = 0; i < peers.size(); ++i) {
      const std::string element = absl::StrCat(list, "[", i, "]");
      const std::string address_path = absl::StrCat(element, ".address");
      const absl::Status rule = CheckRule(peers[i], Peer::descriptor()->FindFieldByName("id"));
      if (!rule.ok()) Add(absl::StrCat(element, ".id"), rule.message());
      const auto [id, id_is_new] = ids.emplace(peers[i].id(), i);
      if (!id_is_new) {
        Add(absl::StrCat(element, ".id"),
            absl::StrCat(peers[i].id(), " is already the id of ", list, "[", id->second, "]"));
      }
      if (const auto parsed = CheckAddress(address_path, peers[i].address(), true);
          parsed.ok() && IsWildcard(parsed->host)) {
        Add(address_path, "a wildcard cannot be reached; give the host's address");
      }
      const auto [address, address_is_new] = addresses.emplace(peers[i].address(), i);
      if (!address_is_new) {
        Add(address_path, absl::StrCat(Quoted(peers[i].address()), " is already the address of ",
                                       list, "[", address->second, "]"));
      }
    }
    const uint32_t own = config_.cluster().id();
    if (!peers.empty() && ids.find(own) == ids.end()) {
      Add("cluster.id", absl::StrCat(own, " is not among ", list, "; add this server there"));
    }
  }

  void CheckRounds() {
    const int64_t chunk = config_.rounds().chunk_bytes();
    if (chunk % 64 != 0) {
      Add("rounds.chunk_bytes", absl::StrCat(FormatBytes(chunk), " is not a multiple of 64 bytes"));
    }
    const int64_t frame = config_.limits().max_frame_bytes();
    if (chunk > frame - kFrameHeaderRoom) {
      Add("rounds.chunk_bytes",
          absl::StrCat(FormatBytes(chunk), " does not fit into limits.max_frame_bytes ",
                       FormatBytes(frame), " with ", FormatBytes(kFrameHeaderRoom),
                       " to spare; lower the first or raise the second"));
    }
    const int64_t credit = config_.rounds().credit_bytes();
    if (credit / 2 < chunk) {
      Add("rounds.credit_bytes",
          absl::StrCat(FormatBytes(credit), " is below twice rounds.chunk_bytes ",
                       FormatBytes(chunk), "; raise the first or lower the second"));
    }
  }

  // One trainer's push without a pause must fit, or each of its rounds breaks; so must the largest
  // message, or it never becomes whole. BudgetsOf keeps the same for the default.
  void CheckRpcMemory() {
    const int64_t memory = config_.limits().max_rpc_memory_bytes();
    if (memory == 0) return;
    const std::pair<int64_t, const char*> parts[] = {
        {config_.rounds().credit_bytes(), "rounds.credit_bytes"},
        {config_.limits().max_control_message_bytes(), "limits.max_control_message_bytes"},
        {config_.limits().max_frame_bytes(), "limits.max_frame_bytes"}};
    const auto& [bytes, name] = *std::max_element(
        std::begin(parts), std::end(parts),
        [](const auto& one, const auto& other) { return one.first < other.first; });
    if (memory / 4 >= bytes) return;
    Add("limits.max_rpc_memory_bytes",
        absl::StrCat(FormatBytes(memory), " is below four times ", name, " ", FormatBytes(bytes),
                     "; raise the first or lower the second"));
  }

  void CheckStorage() {
    if (!config_.storage().must_exist() || !config_.storage().data_dir().empty()) return;
    Add("storage.must_exist",
        "there is no storage.data_dir that could exist; set that one, or leave this one out");
  }

  void CheckAio() {
    const int64_t block = config_.aio().block_size();
    if (block % 4096 != 0) {
      Add("aio.block_size", absl::StrCat(block, " bytes are not a multiple of 4096"));
    }
  }

  void RequireAbove(const std::string& path, int64_t value, const std::string& lower_path,
                    int64_t lower) {
    if (value > lower) return;
    Add(path, absl::StrCat(Duration(value), " must be above ", lower_path, " ", Duration(lower),
                           "; raise the first or lower the second"));
  }

  void CheckTiming() {
    const v1::Timing& timing = config_.timing();
    RequireAbove("timing.report_after", timing.report_after(), "timing.heartbeat_interval",
                 timing.heartbeat_interval());
    RequireAbove("timing.lease", timing.lease(), "timing.report_after", timing.report_after());
  }

  void CheckSecurity() {
    const v1::Security& security = config_.security();
    const bool tls = security.mode() == v1::SECURITY_MODE_TLS;
    const struct {
      const char* path;
      const std::string& file;
      bool needed;
    } files[] = {{"security.ca", security.ca(), true},
                 {"security.certificate", security.certificate(), true},
                 {"security.key", security.key(), true},
                 {"security.tokens_file", security.tokens_file(), false},
                 {"security.denied_file", security.denied_file(), false}};
    for (const auto& [path, file, needed] : files) {
      if (tls && needed && file.empty()) {
        Add(path, "must be set with security.mode: tls; scripts/dev-ca.sh makes files for tests");
      }
      if (!tls && !file.empty()) {
        Add(path, absl::StrCat(Quoted(file),
                               " has no effect without security.mode: tls; set that, "
                               "or remove this"));
      }
    }
    if (!IsTrustDomain(security.trust_domain())) {
      Add("security.trust_domain",
          absl::StrCat(Quoted(security.trust_domain()),
                       " is no trust domain; use 1 to 128 of a-z 0-9 . _ -, beginning with a "
                       "letter or a digit"));
    }
  }

  const ServerConfig& config_;
  std::vector<Violation> violations_;
};

absl::Status ToStatus(const std::vector<Violation>& violations) {
  ErrorList errors;
  for (const Violation& violation : violations) errors.Add(violation.path, violation.message);
  return errors.ToStatus();
}

}  // namespace

std::vector<Violation> FindViolations(const ServerConfig& config) { return Checker(config).Run(); }

absl::Status Validate(const ServerConfig& config) { return ToStatus(FindViolations(config)); }

absl::Status ValidatePeers(const ServerConfig& config, const std::vector<Peer>& peers) {
  return ToStatus(Checker(config).RunPeers(peers));
}

}  // namespace ballast::config
