// Whatever the bytes are, the reader of job.ballast (a snapshot's manifest) answers, and what it
// takes it would write the same. Each input is read in three ways: as a file; as what stands in one
// between head and checksum, which no fuzzer guesses; as each of the two records in it.
// Comes from: libFuzzer (preset fuzz), job_file_corpus_test.cc. Goes to: DecodeManifest.
// Thread safety: one thread.
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "server/durability/sealed_bytes.h"
#include "server/snapshot/manifest.h"

namespace ballast::server {
namespace {

void ReadAsFile(absl::string_view bytes) {
  const auto manifest = DecodeManifest(bytes);
  if (!manifest.ok()) return;
  BALLAST_CHECK(EncodeManifest(*manifest) == bytes);
  BALLAST_CHECK(manifest->id != 0 && manifest->prepared.round + 1 == manifest->round);
}

void ReadAsRecords(const std::string& bytes) {
  const auto prepared = DecodePrepared(bytes);
  if (prepared.ok()) BALLAST_CHECK(EncodePrepared(*prepared) == bytes);
  const auto decision = DecodeDecision(bytes);
  if (decision.ok()) BALLAST_CHECK(EncodeDecision(*decision) == bytes);
}

}  // namespace
}  // namespace ballast::server

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const absl::string_view input(reinterpret_cast<const char*>(data), bytes);
  ballast::server::ReadAsFile(input);
  ballast::server::ReadAsFile(ballast::server::SealBytes("BALLSNP\n", 1, input));
  ballast::server::ReadAsRecords(std::string(input));
  return 0;
}
