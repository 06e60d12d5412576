// Every target answers its seeds and their prefixes, its corpus, where that is small with all
// prefixes, and a fixed number of inputs that its mutator makes of both. An input that ends the
// process is shown, escaped.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "tests/fuzz/corpus.h"
#include "tests/fuzz/fuzz_loop.h"
#include "tests/fuzz/fuzz_target.h"

namespace ballast::fuzz {
namespace {

constexpr uint64_t kSeed = 26;
constexpr size_t kPrefixesMax = 512;
constexpr size_t kInputBytesMax = 1 << 16;

const FuzzLoop* running = nullptr;

// The process ends anyway: calls not allowed in a handler do no more harm.
void ShowInput(int) {
  if (running == nullptr) return;
  std::fprintf(stderr, "run %llu, input \"%s\"\n", static_cast<unsigned long long>(running->runs()),
               absl::CHexEscape(running->last_input()).c_str());
}

// The inputs that are kept of the target.
std::vector<std::string> KeptOf(const std::string& name) {
  std::vector<std::string> inputs;
  const auto corpus = CorpusOf(name);
  EXPECT_TRUE(corpus.ok()) << corpus.status();
  if (!corpus.ok()) return inputs;
  EXPECT_FALSE(corpus->empty());
  for (const auto& [file, bytes] : *corpus) inputs.push_back(bytes);
  return inputs;
}

class Targets : public ::testing::TestWithParam<NamedTarget> {};

TEST_P(Targets, AnswerSeedsCorpusAndWhatMutatorsMakeOfThem) {
  const std::unique_ptr<FuzzTarget> target = GetParam().make();
  EXPECT_FALSE(target->Seeds().empty());
  FuzzLoop loop(target.get(), KeptOf(GetParam().name), kSeed);
  running = &loop;
  std::signal(SIGABRT, &ShowInput);
  std::signal(SIGSEGV, &ShowInput);
  loop.Replay(
      {.of_seeds = kPrefixesMax, .of_corpus = GetParam().cuts_corpus ? kInputBytesMax : size_t{0}});
  loop.Run(GetParam().runs);
  std::signal(SIGABRT, SIG_DFL);
  std::signal(SIGSEGV, SIG_DFL);
  running = nullptr;
}

INSTANTIATE_TEST_SUITE_P(All, Targets, ::testing::ValuesIn(FuzzTargets()),
                         [](const auto& named) { return std::string(named.param.name); });

}  // namespace
}  // namespace ballast::fuzz
