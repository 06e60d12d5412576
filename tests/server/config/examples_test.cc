// The examples in configs/ load, printing is the inverse of loading, and damaged examples are
// refused or accepted, never a crash.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/config/load.h"
#include "server/config/print.h"

namespace ballast::config {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Paths of the examples whose name begins with `prefix`, sorted.
std::vector<std::string> Examples(const std::string& prefix) {
  std::vector<std::string> paths;
  const std::string dir = std::string(BALLAST_SOURCE_DIR) + "/configs";
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    if (absl::StartsWith(entry.path().filename().string(), prefix)) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

TEST(Examples, EveryServerConfigurationLoads) {
  EXPECT_GE(Examples("server").size(), 4u);
  for (const std::string& path : Examples("server")) {
    LoadOptions options;
    options.file = path;
    const auto loaded = Load(options);
    EXPECT_TRUE(loaded.ok()) << path << "\n" << loaded.status();
  }
}

TEST(Examples, EveryPeersFileLoads) {
  EXPECT_GE(Examples("peers").size(), 1u);
  for (const std::string& path : Examples("peers")) {
    const auto peers = ParsePeersFile(ReadFile(path), path);
    ASSERT_TRUE(peers.ok()) << peers.status();
    EXPECT_TRUE(ValidatePeers(DefaultConfig(), *peers).ok()) << path;
  }
}

TEST(Examples, TheFullOneHoldsEveryFieldAtItsDefault) {
  LoadOptions options;
  options.file = absl::StrCat(BALLAST_SOURCE_DIR, "/configs/server-full.yaml");
  const auto loaded = Load(options);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.SerializeAsString(), DefaultConfig().SerializeAsString());
  for (const auto& [path, origin] : loaded->origins) EXPECT_NE(origin, "default") << path;
}

TEST(Print, LoadsAgainToTheSameConfiguration) {
  for (const std::string& path : Examples("server")) {
    LoadOptions options;
    options.file = path;
    options.flags["storage.data_dir"] = "/a \"b\"\\c: #d/\xc3\xa4";
    const auto first = Load(options);
    ASSERT_TRUE(first.ok()) << first.status();
    const std::string printed = Print(*first);
    LoadOptions again;
    again.file = "printed.yaml";
    again.text = printed;
    const auto second = Load(again);
    ASSERT_TRUE(second.ok()) << second.status() << "\n" << printed;
    EXPECT_EQ(second->config.SerializeAsString(), first->config.SerializeAsString()) << printed;
  }
}

TEST(Print, ShowsUnitsAndOrigins) {
  LoadOptions options;
  options.file = "server.yaml";
  options.text =
      "listen: {address: \"127.0.0.1:7000\"}\ncluster:\n  peers:\n"
      "    - {id: 0, address: \"127.0.0.1:7000\"}\n";
  options.env["BALLAST_STORAGE_DRAM_BUDGET"] = "65536MiB";
  options.flags["timing.lease"] = "90s";
  const auto loaded = Load(options);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const std::string printed = Print(*loaded);
  for (const std::string line :
       {"\n  address: \"127.0.0.1:7000\"  # server.yaml:1:19\n",
        "\n  insecure_network: false  # default\n",
        "\n  peers:  # server.yaml:4:5\n    - id: 0  # server.yaml:4:12\n"
        "      address: \"127.0.0.1:7000\"  # server.yaml:4:24\n",
        "\n  dram_budget: 64GiB  # BALLAST_STORAGE_DRAM_BUDGET\n",
        "\n  lease: 90s  # --timing.lease\n", "\n  report_after: 2500ms  # default\n",
        "\n  level: info  # default\n", "\nisa: \"\"  # default\n"}) {
    EXPECT_TRUE(absl::StrContains(printed, line)) << line << "\n" << printed;
  }
}

// One random edit: a byte replaced, inserted or removed, a span repeated, or the text cut.
void Mutate(std::mt19937_64* random, std::string* text) {
  static constexpr char kBytes[] = "{}[]:,-#&*!|>'\"%@`~?\\ \n\t\r0x9a\x01\x7f\xc3\xff";
  const size_t at = text->empty() ? 0 : (*random)() % text->size();
  const char byte = kBytes[(*random)() % (sizeof(kBytes) - 1)];
  switch ((*random)() % 5) {
    case 0:
      if (!text->empty()) (*text)[at] = byte;
      break;
    case 1:
      text->insert(at, 1 + (*random)() % 3, byte);
      break;
    case 2:
      text->erase(at, 1 + (*random)() % 8);
      break;
    case 3:
      text->insert(at, text->substr(at, (*random)() % 64));
      break;
    default:
      if ((*random)() % 8 == 0) text->resize(at);
  }
}

TEST(Mutations, OfExamplesNeverCrashAndWhatLoadsPrintsAndLoadsAgain) {
  std::mt19937_64 random(20240607);
  std::vector<std::string> texts;
  for (const std::string& path : Examples("")) {
    if (std::filesystem::is_regular_file(path)) texts.push_back(ReadFile(path));
  }
  int accepted = 0;
  for (int i = 0; i < 6000; ++i) {
    LoadOptions options;
    options.text = texts[random() % texts.size()];
    for (uint64_t edits = 1 + random() % 6; edits > 0; --edits) Mutate(&random, &*options.text);
    (void)ParsePeersFile(*options.text);
    const auto loaded = Load(options);
    if (!loaded.ok()) {
      ASSERT_EQ(loaded.status().code(), absl::StatusCode::kInvalidArgument);
      continue;
    }
    ++accepted;
    options.text = Print(*loaded);
    const auto again = Load(options);
    ASSERT_TRUE(again.ok()) << again.status() << "\n" << *options.text;
    ASSERT_EQ(again->config.SerializeAsString(), loaded->config.SerializeAsString());
  }
  EXPECT_GT(accepted, 100);  // else the mutations test the YAML parser only
}

}  // namespace
}  // namespace ballast::config
