// Target records: the records of the gradient log (votes, decisions, ratios) and the values of the
// metadata store, down to a job's plan. Accepted records are written again as the same bytes.
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/bytes/crc32c.h"
#include "common/bytes/little_endian.h"
#include "server/convert/plan_convert.h"
#include "server/durability/records/ratios_record.h"
#include "server/durability/records/records.h"
#include "server/jobs/job_records.h"
#include "server/meta/keys.h"
#include "server/meta/memory_store.h"
#include "server/meta/value_codec.h"
#include "tests/fuzz/byte_mutator.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/kinds.h"
#include "tests/fuzz/targets/log_records.h"
#include "tests/fuzz/targets/specs.h"

namespace ballast::fuzz {
namespace {

enum Kind : size_t { kPrepared, kDecision, kRatios, kStored, kPlan, kJobName, kKey, kKinds };

constexpr char kStoredKey[] = "job/7/plan";
constexpr uint64_t kJob = 77;

// `stored` with the checksum that belongs to it.
std::string Sealed(absl::string_view key, std::string stored) {
  if (stored.size() < server::kMetaHeaderBytes) return stored;
  std::string length;
  AppendLittleEndian(static_cast<uint32_t>(key.size()), &length);
  uint32_t crc = Crc32c(length.data(), length.size());
  crc = Crc32c(key.data(), key.size(), crc);
  crc = Crc32c(stored.data() + 8, stored.size() - 8, crc);
  std::memcpy(stored.data() + 4, &crc, sizeof(crc));
  return stored;
}

void RunStored(const std::string& bytes) {
  for (const std::string& stored : {bytes, Sealed(kStoredKey, bytes)}) {
    const auto entry = server::DecodeMetaValue(kStoredKey, stored);
    if (!entry.ok()) continue;
    BALLAST_CHECK(entry->key == kStoredKey && server::EncodeMetaValue(*entry) == stored);
    BALLAST_CHECK(!server::DecodeMetaValue("job/8/plan", stored).ok());
  }
}

server::PlanCodec Codec() {  // As the server's.
  server::PlanCodec codec;
  codec.encode = [](const server::JobPlan& plan) {
    return server::PeerJobToProto(plan).SerializeAsString();
  };
  codec.decode = [](const std::string& bytes) -> absl::StatusOr<server::JobPlan> {
    v1::PeerJob job;
    if (!job.ParseFromString(bytes)) return absl::DataLossError("it does not parse");
    return server::PeerJobFromProto(job);
  };
  return codec;
}

void Put(server::MetaStore* meta, const std::string& key, absl::string_view value) {
  BALLAST_CHECK(meta->Txn(server::PutOnce(key, std::string(value))).ok());
}

void RunPlan(absl::string_view value) {
  server::MemoryMetaStore meta;
  Put(&meta, server::JobPlanKey(kJob), value);
  const absl::StatusOr<server::JobPlan> plan = server::JobRecords(&meta, Codec()).Find(kJob);
  if (!plan.ok()) {
    BALLAST_CHECK(plan.status().code() == absl::StatusCode::kDataLoss ||
                  plan.status().code() == absl::StatusCode::kFailedPrecondition);
    return;
  }
  BALLAST_CHECK(plan->job == kJob);
}

void RunJobName(absl::string_view value) {
  server::MemoryMetaStore meta;
  Put(&meta, "jobs/a", value);
  server::JobRecords records(&meta, Codec());
  const auto names = records.Names();
  const QualifiedName job{.name = "a"};
  const auto id = records.IdOf(job);
  BALLAST_CHECK(names.ok() == id.ok());
  if (id.ok()) BALLAST_CHECK(names->at(job.Text()) == *id);
}

void RunKey(absl::string_view key) {
  const absl::StatusOr<uint64_t> number = server::NumberOfKey(key);
  if (number.ok()) {
    const absl::string_view digits = key.substr(key.rfind('/') + 1);
    uint64_t again = 0;
    BALLAST_CHECK(absl::SimpleAtoi(digits, &again) && again == *number);
  }
  // "tenant/job" or "job", as a key has it.
  const std::pair<std::string, std::string> parts = absl::StrSplit(key, absl::MaxSplits('/', 1));
  const bool bare = !absl::StrContains(key, '/');
  const QualifiedName job =
      bare ? QualifiedName{.name = parts.first} : QualifiedName{parts.first, parts.second};
  const absl::StatusOr<std::string> name = server::JobNameKey(job);
  if (name.ok()) BALLAST_CHECK(*name == absl::StrCat("jobs/", job.Text()));
}

class Records : public FuzzTarget {
 public:
  std::vector<std::string> Seeds() const override {
    const server::RatiosRecord ratios{.epoch = 1,
                                      .round = 3,
                                      .ratios = {1, 0.5f},
                                      .squares = {{.extent = 1, .tensor = 1, .p = 2}}};
    v1::PeerJob job;
    job.set_job(kJob);
    *job.mutable_spec() = GoodSpec();
    job.add_servers(0);
    job.mutable_epoch()->add_members()->set_incarnation(5);
    std::string version_one("\x01\0\0\0", 4);
    return {JoinKind(kPrepared, server::EncodePrepared(GoodPrepared())),
            JoinKind(kDecision, server::EncodeDecision(GoodDecision())),
            JoinKind(kRatios, server::EncodeRatios(ratios)),
            JoinKind(kStored, server::EncodeMetaValue({kStoredKey, "value", 3, 9})),
            JoinKind(kPlan, version_one + job.SerializeAsString()),
            JoinKind(kJobName, "18446744073709551615"),
            JoinKind(kKey, "job/7/epoch/00000000000000000012")};
  }

  void Run(absl::string_view input) const override {
    const KindInput parts = SplitKind(input, kKinds);
    switch (parts.kind) {
      case kPrepared:
        return SameBytes(server::DecodePrepared(parts.rest), &server::EncodePrepared, parts.rest);
      case kDecision:
        return SameBytes(server::DecodeDecision(parts.rest), &server::EncodeDecision, parts.rest);
      case kRatios:
        return SameBytes(server::DecodeRatios(parts.rest), &server::EncodeRatios, parts.rest);
      case kStored:
        return RunStored(std::string(parts.rest));
      case kPlan:
        return RunPlan(parts.rest);
      case kJobName:
        return RunJobName(parts.rest);
      default:
        return RunKey(parts.rest);
    }
  }

  std::string Mutate(const std::string& input, FuzzRandom* random) const override {
    const KindInput parts = SplitKind(input, kKinds);
    if (parts.kind != kPlan || parts.rest.size() < 4 || random->OneIn(8)) {
      return JoinKind(parts.kind, MutateBytes(std::string(parts.rest), words_, random));
    }
    const std::string plan = MutateSerialized(plan_, parts.rest.substr(4), random);
    return JoinKind(parts.kind, absl::StrCat(parts.rest.substr(0, 4), plan));
  }

 private:
  template <typename Record>
  static void SameBytes(const absl::StatusOr<Record>& record, std::string (*encode)(const Record&),
                        absl::string_view bytes) {
    if (record.ok()) BALLAST_CHECK(encode(*record) == bytes);
  }

  const v1::PeerJob plan_;
  const std::vector<std::string> words_ = {"/", "0", "18446744073709551616", "-1", "job", "BLMV"};
};

}  // namespace

std::unique_ptr<FuzzTarget> RecordsTarget() { return std::make_unique<Records>(); }

}  // namespace ballast::fuzz
