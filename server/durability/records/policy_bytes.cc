#include "server/durability/records/policy_bytes.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace ballast::server {
namespace {

// Each version appends fields to those of the version before.
constexpr uint32_t kPolicyVersion = kPolicyVersionScheduled;
constexpr uint32_t kBytesOfVersion1 = 24;
constexpr uint32_t kBytesOfVersion2 = kBytesOfVersion1 + 40;  // and the rates
constexpr uint32_t kRatesBytes = 24;                          // of one group

uint32_t BytesOf(const PolicyState& policy) {
  if (policy.version == 1) return kBytesOfVersion1;
  const auto groups = static_cast<uint32_t>(policy.rates.size());
  return kBytesOfVersion2 + static_cast<uint32_t>(sizeof(uint32_t)) + kRatesBytes * groups;
}

// Whether this can be the state of a scaler.
bool IsPossible(const PolicyState& policy) {
  return policy.loss_scale > 0 && std::isfinite(policy.loss_scale) &&
         policy.scaler_iteration >= 0 && policy.last_overflow >= -1 &&
         policy.last_overflow < policy.scaler_iteration && policy.hysteresis_left >= 1 &&
         policy.schedule_index >= -1;
}

void TakeVersion2(ByteReader* in, PolicyState* policy) {
  policy->scaler_iteration = in->Get<int64_t>();
  policy->last_overflow = in->Get<int64_t>();
  policy->hysteresis_left = in->Get<int64_t>();
  policy->skipped = in->Get<uint64_t>();
  policy->schedule_index = in->Get<int64_t>();
  policy->rates = GetRates(in);
}

}  // namespace

void PutRates(const std::vector<GroupRates>& rates, ByteWriter* out) {
  out->Put<uint32_t>(rates.size());
  for (const GroupRates& group : rates) {
    out->Put(group.lr);
    out->Put(group.beta1);
    out->Put(group.beta2);
  }
}

std::vector<GroupRates> GetRates(ByteReader* in) {
  std::vector<GroupRates> rates(in->GetCount(kRatesBytes));
  for (GroupRates& group : rates) {
    group.lr = in->Get<double>();
    group.beta1 = in->Get<double>();
    group.beta2 = in->Get<double>();
  }
  return rates;
}

void PutPolicy(const PolicyState& policy, ByteWriter* out) {
  BALLAST_CHECK(policy.version >= 1 && policy.version <= kPolicyVersion);
  out->Put(policy.version);
  out->Put(BytesOf(policy));
  out->Put(policy.loss_scale);
  out->Put(policy.opt_step);
  out->Put(policy.consecutive_skips);
  if (policy.version == 1) return;
  out->Put(policy.scaler_iteration);
  out->Put(policy.last_overflow);
  out->Put(policy.hysteresis_left);
  out->Put(policy.skipped);
  out->Put(policy.schedule_index);
  PutRates(policy.rates, out);
}

absl::StatusOr<PolicyState> GetPolicy(ByteReader* in) {
  const uint32_t version = in->Get<uint32_t>();
  if (version > kPolicyVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("policy state of version ", version, "; this program reads versions up ",
                     "to ", kPolicyVersion, "; use the program that wrote it, or a newer one"));
  }
  const std::string bytes = in->GetBytes(in->GetCount(1));
  PolicyState policy = PolicyFromBytes(bytes.substr(0, kBytesOfVersion1));
  policy.version = version;
  bool good = version == 1 && bytes.size() == kBytesOfVersion1;
  if (version == 2 && bytes.size() >= kBytesOfVersion2) {
    const std::string rest = bytes.substr(kBytesOfVersion1);
    ByteReader fields(rest);
    TakeVersion2(&fields, &policy);
    good = fields.AtEnd() && IsPossible(policy);
  }
  if (good) return policy;
  in->Fail();
  return PolicyState();
}

PolicyState PolicyFromBytes(absl::string_view bytes) {
  PolicyState policy;
  ByteReader in(bytes);
  if (!in.AtEnd()) policy.loss_scale = in.Get<double>();
  if (!in.AtEnd()) policy.opt_step = in.Get<uint64_t>();
  if (!in.AtEnd()) policy.consecutive_skips = in.Get<uint64_t>();
  return policy;
}

}  // namespace ballast::server
