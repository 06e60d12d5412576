// The table of methods: which roles may call each of them, and which calls are audited. The only
// source of these rules; docs/security.md has the same table, printed from here. A server does not
// start with a method missing from the table, and a test compares the table with the services in
// proto/ballast/v1. Comes from: nothing. Goes to: the gate, GenericServer. Thread safety:
// constants.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/security/identity.h"

namespace ballast::server {

// A set of roles.
class Roles {
 public:
  constexpr Roles(std::initializer_list<Role> roles) {
    for (const Role role : roles) bits_ |= Bit(role);
  }
  constexpr bool Has(Role role) const { return (bits_ & Bit(role)) != 0; }
  // "viewer, operator, admin"
  std::string Text() const;

 private:
  static constexpr uint8_t Bit(Role role) {
    return static_cast<uint8_t>(1u << static_cast<unsigned>(role));
  }
  uint8_t bits_ = 0;
};

// The tie, in addition to its role, between a caller and the subject of a call.
enum class Scope : uint8_t {
  kOpen,     // nothing: the call needs no identity
  kTenant,   // names and numbers in the message are looked up within its tenant
  kCluster,  // the call is about the whole cluster
  kServer,   // the call is about the called server; for operators
  kHello,    // the message names the server that calls; without security every caller may
  kPeer,     // the message names the server that calls
  kHome,     // the server that calls is the home of the cluster: the one with the lowest id
};

struct MethodRow {
  const char* method;
  Roles roles;
  Scope scope;
  bool audited;  // an order: each call is a line of the audit log
};

// By service, in the order of the .proto files.
absl::Span<const MethodRow> MethodTable();

// The row of a method ("/ballast.v1.Admin/Status"), or null.
const MethodRow* FindMethod(absl::string_view method);

// The table in Markdown, for docs/security.md.
std::string MethodTablePage();

}  // namespace ballast::server
