// Target job_file: job.ballast, a snapshot's manifest. Accepted records are written the same, and
// belong to the round before the manifest's. Each input is read in three ways: as a file; as the
// content of one between head and checksum, which no fuzzer guesses; as each of the two records in
// it.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "server/durability/records/sealed_bytes.h"
#include "server/snapshot/manifest.h"
#include "tests/fuzz/byte_mutator.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/targets/log_records.h"

namespace ballast::fuzz {
namespace {

using server::DecodeDecision;
using server::DecodeManifest;
using server::DecodePrepared;
using server::EncodeDecision;
using server::EncodeManifest;
using server::EncodePrepared;
using server::SnapshotManifest;

constexpr char kMagic[] = "BALLSNP\n";
constexpr size_t kHeadBytes = 24;
constexpr size_t kTailBytes = 4;

SnapshotManifest GoodManifest() {
  SnapshotManifest manifest{.id = 5, .name = "before", .job = "job", .created_s = 1, .round = 4};
  manifest.plan = "a plan";
  manifest.prepared = GoodPrepared();
  manifest.decision = GoodDecision();
  return manifest;
}

// The content between head and checksum.
std::string BodyOf(const std::string& file) {
  return file.substr(kHeadBytes, file.size() - kHeadBytes - kTailBytes);
}

void ReadAsFile(absl::string_view bytes) {
  const auto manifest = DecodeManifest(bytes);
  if (!manifest.ok()) return;
  BALLAST_CHECK(EncodeManifest(*manifest) == bytes);
  BALLAST_CHECK(manifest->id != 0 && manifest->prepared.round + 1 == manifest->round);
  BALLAST_CHECK(manifest->decision.round + 1 == manifest->round);
}

void ReadAsRecords(const std::string& bytes) {
  const auto prepared = DecodePrepared(bytes);
  if (prepared.ok()) BALLAST_CHECK(EncodePrepared(*prepared) == bytes);
  const auto decision = DecodeDecision(bytes);
  if (decision.ok()) BALLAST_CHECK(EncodeDecision(*decision) == bytes);
}

// Changes a field of a good manifest.
void ChangeField(SnapshotManifest* manifest, FuzzRandom* random) {
  uint64_t* const numbers[] = {
      &manifest->id,    &manifest->created_s,      &manifest->round,
      &manifest->bytes, &manifest->prepared.round, &manifest->decision.round};
  std::string* const texts[] = {&manifest->name, &manifest->job, &manifest->plan};
  if (random->OneIn(3)) {
    std::string* const text = texts[random->Below(3)];
    *text = MutateBytes(*text, {".export", ".", "-", "/"}, random);
  } else {
    uint64_t* const number = numbers[random->Below(6)];
    *number = random->Boundary(*number);
  }
}

class JobFile : public FuzzTarget {
 public:
  std::vector<std::string> Seeds() const override {
    const std::string file = EncodeManifest(GoodManifest());
    return {file, BodyOf(file), EncodePrepared(GoodPrepared()), EncodeDecision(GoodDecision())};
  }

  void Run(absl::string_view input) const override {
    ReadAsFile(input);
    ReadAsFile(server::SealBytes(kMagic, 1, input));
    ReadAsRecords(std::string(input));
  }

  std::string Mutate(const std::string& input, FuzzRandom* random) const override {
    auto manifest = DecodeManifest(input);
    if (!manifest.ok()) manifest = DecodeManifest(server::SealBytes(kMagic, 1, input));
    if (!manifest.ok() || random->OneIn(4)) return MutateBytes(input, words_, random);
    ChangeField(&*manifest, random);
    const std::string file = EncodeManifest(*manifest);
    return random->OneIn(2) ? file : BodyOf(file);
  }

 private:
  const std::vector<std::string> words_ = {kMagic, ".export", std::string("\x01\0\0\0", 4),
                                           "\xff\xff\xff\xff"};
};

}  // namespace

std::unique_ptr<FuzzTarget> JobFileTarget() { return std::make_unique<JobFile>(); }

}  // namespace ballast::fuzz
