// Shared parts of the gradient log's tests: small options, records with content that depends on
// their identity, and a model of the answers of a log with these records.
// Comes from: the tests in this folder. Thread safety: thread-compatible.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "common/io/arena.h"
#include "common/io/memory_disk.h"
#include "server/durability/log/gradient_log.h"
#include "server/durability/log/log_format.h"

namespace ballast::server {

inline const MemoryDisk::Random kKeepAll = [] { return 0; };
inline const MemoryDisk::Random kLoseAll = [] { return 1; };

constexpr char kLogDirectory[] = "job";
constexpr uint64_t kLogSecret = 0x1122334455667788;

// Which secret a log is made with, and which one the programs have that open it. Without one a log
// is of version 1; the next segment of a program that has one is of version 2.
struct LogForm {
  const char* name;
  uint64_t made;
  uint64_t opened;
};
constexpr LogForm kLogForms[] = {{"WithoutASecret", 0, 0},
                                 {"WithASecretLater", 0, kLogSecret},
                                 {"WithASecret", kLogSecret, kLogSecret + 1}};
inline std::string NameOfForm(const ::testing::TestParamInfo<LogForm>& form) {
  return form.param.name;
}

// The secret of a program that is started; half of the time none, so that logs without one live
// for a few restarts. A log that has a secret keeps it in any case.
inline uint64_t DrawSecret(std::mt19937_64* random) {
  const bool none = (*random)() % 2 == 0;
  return none ? 0 : (*random)() | 1;
}

inline LogOptions SmallLog(uint64_t segment_pages = 8, uint32_t segments = 3) {
  return {.job = 77,
          .server = 2,
          .segment_bytes = segment_pages * kPageBytes,
          .segments = segments,
          .open_threads = 1,
          .secret = kLogSecret};
}

// `bytes` bytes that differ for every seed.
inline std::string Bytes(uint64_t seed, size_t bytes) {
  std::mt19937_64 random(seed);
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

struct TestExtent {
  LoggedExtent at;
  std::string data;
};

inline TestExtent MakeExtent(uint64_t round, uint32_t extent, size_t bytes, uint32_t epoch = 1,
                             uint64_t attempt = 0) {
  return {.at = {.epoch = epoch,
                 .round = round,
                 .extent = extent,
                 .dtype = DType::kBF16,
                 .sumsq = 0.5 + extent,
                 .nonfinite = round % 3,
                 .bytes = bytes},
          .data = Bytes(((round * 100 + extent) * 100 + epoch) * 100 + attempt, bytes)};
}

// A vote over `extents`, which are all in the log.
inline PreparedRecord MakePrepared(uint64_t round, const std::vector<uint32_t>& extents,
                                   uint32_t epoch = 1) {
  PreparedRecord record{.epoch = epoch, .round = round};
  record.vote.server = 2;
  record.vote.nonfinite = round;
  record.vote.contributor_digest = static_cast<uint32_t>(round * 7);
  for (const uint32_t extent : extents) {
    record.vote.norms.push_back({.extent = extent, .sumsq = 0.5 + extent});
  }
  record.vote.scalars = {{.group = 1, .step = round, .bits = {1, 2, 3}}};
  record.present = {true, false, true};
  record.tensor_step = {round, 0, round};
  record.policy.opt_step = round - 1;
  return record;
}

inline DecisionRecord MakeDecision(uint64_t round, uint32_t epoch = 1) {
  DecisionRecord record{.epoch = epoch, .round = round};
  record.decision.applied = round % 4 != 0;
  record.decision.grad_norm = 1.0 / static_cast<double>(round);
  record.decision.grad_scale = {0.25f, -0.0f};
  record.decision.policy.opt_step = round;
  return record;
}

// One call of the log, for replaying into a model.
struct TestRecord {
  std::optional<TestExtent> extent;
  std::optional<PreparedRecord> prepared;
  std::optional<DecisionRecord> decision;

  uint64_t round() const {
    if (extent.has_value()) return extent->at.round;
    return prepared.has_value() ? prepared->round : decision->round;
  }
};

inline absl::Status Append(GradientLog* log, const TestRecord& record) {
  if (record.extent.has_value()) {
    return log->AppendExtent({.at = record.extent->at, .data = record.extent->data.data()});
  }
  return record.prepared.has_value() ? log->AppendPrepared(*record.prepared)
                                     : log->AppendDecision(*record.decision);
}

// A log's answers as text: equal texts are equal logs. Payloads are not part of it.
inline std::string Describe(const std::map<uint64_t, LoggedRound>& rounds, uint64_t from = 0) {
  std::string text;
  for (auto at = rounds.lower_bound(from); at != rounds.end(); ++at) {
    text += "round " + std::to_string(at->first);
    for (const auto& [number, extent] : at->second.extents) {
      text += " extent " + std::to_string(number) + " epoch " + std::to_string(extent.epoch) + " " +
              std::to_string(extent.bytes) + " bytes " + DTypeName(extent.dtype) + " sumsq " +
              std::to_string(extent.sumsq) + " nonfinite " + std::to_string(extent.nonfinite);
    }
    if (at->second.prepared.has_value())
      text += " prepared " + EncodePrepared(*at->second.prepared);
    if (at->second.decision.has_value()) text += " decided " + EncodeDecision(*at->second.decision);
    text += "\n";
  }
  return text;
}

// The content of a log with the first `count` of `records`, by the rules of docs/formats/log.md.
inline std::map<uint64_t, LoggedRound> Model(const std::vector<TestRecord>& records, size_t count) {
  std::map<uint64_t, LoggedRound> rounds;
  for (size_t i = 0; i < count; ++i) {
    LoggedRound& round = rounds[records[i].round()];
    if (records[i].extent.has_value()) {
      round.extents[records[i].extent->at.extent] = records[i].extent->at;
      round.prepared.reset();
    }
    if (records[i].prepared.has_value()) round.prepared = records[i].prepared;
    if (records[i].decision.has_value()) round.decision = records[i].decision;
  }
  return rounds;
}

// The payload of an extent that the log lists, or its error.
inline absl::StatusOr<std::string> ReadBack(GradientLog* log, const LoggedExtent& extent) {
  static const Arena buffer = *Arena::Create(size_t{8} << 20);
  EXPECT_LE(extent.bytes, buffer.bytes());
  if (absl::Status status = log->ReadExtent(extent, buffer.data()); !status.ok()) return status;
  return std::string(buffer.data(), extent.bytes);
}

// The payload that the newest of `records` for this extent wrote.
inline std::string WrittenData(const std::vector<TestRecord>& records, size_t count,
                               const LoggedExtent& extent) {
  std::string data = "never written";
  for (size_t i = 0; i < count; ++i) {
    const auto& written = records[i].extent;
    if (written.has_value() && written->at.round == extent.round &&
        written->at.extent == extent.extent && written->at.epoch == extent.epoch) {
      data = written->data;
    }
  }
  return data;
}

}  // namespace ballast::server
