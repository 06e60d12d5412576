#include "server/config/quota_file.h"

#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/text/names.h"
#include "common/text/units.h"
#include "server/config/yaml_tree.h"

namespace ballast::config {
namespace {

using server::Amounts;
using server::Resource;

constexpr char kDefault[] = "default";
constexpr char kTenants[] = "tenants";
constexpr char kNoLimit[] = "unlimited";

std::vector<std::string> Keys() {
  std::vector<std::string> keys;
  for (const Resource& resource : server::Resources()) keys.push_back(resource.key);
  return keys;
}

void AddUnknown(const YamlNode& node, const std::vector<std::string>& known, ErrorList* errors) {
  const std::string meant = DidYouMean(node.key, known);
  errors->Add(node.key_where,
              absl::StrCat(Quoted(node.key), " is not known here; ",
                           meant.empty() ? "" : absl::StrCat("did you mean ", meant, "? "),
                           "known: ", absl::StrJoin(known, ", ")));
}

bool IsMap(const YamlNode& node, ErrorList* errors) {
  if (node.kind == YamlNode::Kind::kMap) return true;
  errors->Add(node.where, absl::StrCat(node.key, ": a map is expected, got ", KindName(node.kind)));
  return false;
}

absl::StatusOr<uint64_t> AmountOf(const YamlNode& node, const Resource& resource) {
  if (node.text == kNoLimit) return server::kUnlimited;
  if (resource.bytes) return ParseBytes(node.text);
  uint64_t number = 0;
  if (absl::SimpleAtoi(node.text, &number) && number < server::kUnlimited) return number;
  return absl::InvalidArgumentError(
      absl::StrCat("expected a whole number or ", kNoLimit, ", got ", Quoted(node.text)));
}

void ReadLimit(const YamlNode& node, const Resource& resource, Amounts* row, ErrorList* errors) {
  if (node.kind != YamlNode::Kind::kScalar || node.quoted) {
    errors->Add(node.where, absl::StrCat(node.key, ": a number is expected, got ",
                                         node.quoted ? "a text in quotes" : KindName(node.kind)));
    return;
  }
  const absl::StatusOr<uint64_t> amount = AmountOf(node, resource);
  if (amount.ok()) {
    row->*resource.amount = *amount;
  } else {
    errors->Add(node.where, absl::StrCat(node.key, ": ", amount.status().message()));
  }
}

// Puts what `node` says into `row`.
void ReadRow(const YamlNode& node, Amounts* row, ErrorList* errors) {
  if (!IsMap(node, errors)) return;
  for (const YamlNode& child : node.children) {
    const Resource* known = nullptr;
    for (const Resource& resource : server::Resources()) {
      if (child.key == resource.key) known = &resource;
    }
    if (known == nullptr) {
      AddUnknown(child, Keys(), errors);
    } else {
      ReadLimit(child, *known, row, errors);
    }
  }
}

void ReadTenants(const YamlNode& node, server::QuotaTable* table, ErrorList* errors) {
  if (!IsMap(node, errors)) return;
  for (const YamlNode& child : node.children) {
    const absl::Status named = ValidateName("tenant", child.key);
    if (!named.ok()) errors->Add(child.key_where, named.message());
    Amounts row = table->others;
    ReadRow(child, &row, errors);
    table->tenants[child.key] = row;
  }
}

}  // namespace

absl::StatusOr<server::QuotaTable> ParseQuotas(absl::string_view text, absl::string_view name) {
  ErrorList errors;
  const YamlNode root = ParseYaml(text, name, &errors);
  BALLAST_RETURN_IF_ERROR(errors.ToStatus());
  server::QuotaTable table;
  if (root.kind == YamlNode::Kind::kNull) return table;
  if (root.kind != YamlNode::Kind::kMap) {
    errors.Add(root.where, absl::StrCat("a map with ", kDefault, " and ", kTenants,
                                        " is expected, got ", KindName(root.kind)));
  }
  // The rows of tenants start from the default one, wherever the file has it.
  for (const YamlNode& node : root.children) {
    if (node.key == kDefault) ReadRow(node, &table.others, &errors);
  }
  for (const YamlNode& node : root.children) {
    if (node.key == kTenants) ReadTenants(node, &table, &errors);
    if (node.key != kDefault && node.key != kTenants)
      AddUnknown(node, {kDefault, kTenants}, &errors);
  }
  BALLAST_RETURN_IF_ERROR(errors.ToStatus());
  return table;
}

}  // namespace ballast::config
