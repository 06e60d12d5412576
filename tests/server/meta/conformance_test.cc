// Duties of every back-end of MetaStore. A further back-end is one more INSTANTIATE at the end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/meta/memory_store.h"
#include "server/meta/meta_store.h"
#include "tests/server/meta/store_folder.h"

namespace ballast::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A back-end under test.
struct Backend {
  std::string name;
  // Makes an empty store, which may use the folder.
  std::function<std::unique_ptr<MetaStore>(const StoreFolder&)> make;
};

void PrintTo(const Backend& backend, std::ostream* out) { *out << backend.name; }

std::vector<std::string> KeysOf(const MetaPage& page) {
  std::vector<std::string> keys;
  for (const MetaEntry& entry : page.entries) keys.push_back(entry.key);
  return keys;
}

class MetaStoreConformance : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    store_ = GetParam().make(folder_);
    ASSERT_NE(store_, nullptr);
  }

  // Commits `txn` and returns the revision; fails the test when it is not committed.
  uint64_t Commit(const MetaTxn& txn) {
    const auto result = store_->Txn(txn);
    EXPECT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(result.ok() && result->committed);
    return result.ok() ? result->revision : 0;
  }
  uint64_t Put(const std::string& key, const std::string& value) {
    return Commit(PutAlways(key, value));
  }
  // Whether a transaction of these compares alone holds.
  bool Holds(std::vector<MetaCompare> compares) {
    MetaTxn txn;
    txn.compares = std::move(compares);
    const auto result = store_->Txn(txn);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() && result->committed;
  }
  MetaEntry Entry(const std::string& key) {
    const auto entry = store_->Get(key);
    EXPECT_TRUE(entry.ok()) << entry.status();
    return entry.ok() ? entry->value_or(MetaEntry{}) : MetaEntry{};
  }
  MetaPage List(const MetaListRequest& request) {
    auto page = store_->List(request);
    EXPECT_TRUE(page.ok()) << page.status();
    return page.ok() ? *std::move(page) : MetaPage{};
  }
  void ExpectInvalid(const MetaTxn& txn, const std::string& text) {
    const auto result = store_->Txn(txn);
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument) << result.status();
    EXPECT_THAT(std::string(result.status().message()), HasSubstr(text));
  }

  StoreFolder folder_;
  std::unique_ptr<MetaStore> store_;
};

TEST_P(MetaStoreConformance, AnEmptyStoreHasNothingAndRevisionZero) {
  EXPECT_EQ(ValueOf(store_.get(), "a"), "(absent)");
  EXPECT_TRUE(List({}).entries.empty());
  EXPECT_EQ(List({}).next, "");
  const auto result = store_->Txn(MetaTxn{});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->committed);
  EXPECT_EQ(result->revision, 0u);
}

TEST_P(MetaStoreConformance, APutIsReadBackWithItsRevisions) {
  EXPECT_EQ(Put("a/b", "one"), 1u);
  EXPECT_EQ(Entry("a/b"), (MetaEntry{"a/b", "one", 1, 1}));
  EXPECT_EQ(Put("a/b", ""), 2u);
  EXPECT_EQ(Entry("a/b"), (MetaEntry{"a/b", "", 1, 2}));
}

TEST_P(MetaStoreConformance, ValuesAreAnyBytes) {
  std::string all;
  for (int i = 0; i < 256; ++i) all.push_back(static_cast<char>(i));
  Put("bytes", all);
  EXPECT_EQ(Entry("bytes").value, all);
  EXPECT_TRUE(Holds({MetaCompare::ValueIs("bytes", all)}));
}

TEST_P(MetaStoreConformance, AllPutsOfATransactionGetOneNewRevision) {
  Put("b", "old");
  MetaTxn txn;
  txn.puts = {{"a", "1"}, {"b", "2"}, {"c", "3"}};
  EXPECT_EQ(Commit(txn), 2u);
  EXPECT_EQ(Entry("a"), (MetaEntry{"a", "1", 2, 2}));
  EXPECT_EQ(Entry("b"), (MetaEntry{"b", "2", 1, 2}));
  EXPECT_EQ(Entry("c"), (MetaEntry{"c", "3", 2, 2}));
}

TEST_P(MetaStoreConformance, DeletedKeysAreGoneAndStartAnew) {
  Put("a", "1");
  MetaTxn txn;
  txn.deletes = {"a"};
  EXPECT_EQ(Commit(txn), 2u);
  EXPECT_EQ(ValueOf(store_.get(), "a"), "(absent)");
  EXPECT_TRUE(List({}).entries.empty());
  Put("a", "2");
  EXPECT_EQ(Entry("a"), (MetaEntry{"a", "2", 3, 3}));
}

TEST_P(MetaStoreConformance, OnlyTransactionsThatWriteRaiseTheRevision) {
  Put("a", "1");
  MetaTxn absent;
  absent.deletes = {"never", "there"};
  EXPECT_EQ(Commit(absent), 1u);
  MetaTxn compares;
  compares.compares = {MetaCompare::Exists("a")};
  EXPECT_EQ(Commit(compares), 1u);
  MetaTxn one_of_two;
  one_of_two.deletes = {"never", "a"};
  EXPECT_EQ(Commit(one_of_two), 2u);
}

TEST_P(MetaStoreConformance, ATransactionPutsAndDeletesTogether) {
  Put("old", "x");
  MetaTxn txn;
  txn.compares = {MetaCompare::ValueIs("old", "x")};
  txn.puts = {{"new", "x"}};
  txn.deletes = {"old"};
  EXPECT_EQ(Commit(txn), 2u);
  EXPECT_THAT(KeysOf(List({})), ElementsAre("new"));
}

TEST_P(MetaStoreConformance, EachCompareHoldsExactlyWhenItShould) {
  Put("a", "1");
  Put("a", "2");
  EXPECT_TRUE(Holds({MetaCompare::Exists("a")}));
  EXPECT_FALSE(Holds({MetaCompare::Exists("b")}));
  EXPECT_TRUE(Holds({MetaCompare::Absent("b")}));
  EXPECT_FALSE(Holds({MetaCompare::Absent("a")}));
  EXPECT_TRUE(Holds({MetaCompare::ModRevisionIs("a", 2)}));
  EXPECT_FALSE(Holds({MetaCompare::ModRevisionIs("a", 1)}));
  EXPECT_TRUE(Holds({MetaCompare::ModRevisionIs("b", 0)}));
  EXPECT_FALSE(Holds({MetaCompare::ModRevisionIs("b", 2)}));
  EXPECT_TRUE(Holds({MetaCompare::ValueIs("a", "2")}));
  EXPECT_FALSE(Holds({MetaCompare::ValueIs("a", "1")}));
  EXPECT_FALSE(Holds({MetaCompare::ValueIs("b", "")}));
  EXPECT_TRUE(Holds({MetaCompare::Exists("a"), MetaCompare::Absent("b")}));
  EXPECT_FALSE(Holds({MetaCompare::Exists("a"), MetaCompare::Absent("a")}));
}

TEST_P(MetaStoreConformance, AFailedCompareWritesNothing) {
  Put("a", "1");
  MetaTxn txn;
  txn.compares = {MetaCompare::Exists("a"), MetaCompare::ValueIs("a", "other")};
  txn.puts = {{"b", "2"}};
  txn.deletes = {"a"};
  const auto result = store_->Txn(txn);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_FALSE(result->committed);
  EXPECT_EQ(result->revision, 1u);
  EXPECT_THAT(KeysOf(List({})), ElementsAre("a"));
  EXPECT_EQ(Put("c", "3"), 2u);
}

TEST_P(MetaStoreConformance, AWriteOnceRecordKeepsItsFirstValue) {
  EXPECT_EQ(Commit(PutOnce("job/1/epoch/1", "first")), 1u);
  const auto again = store_->Txn(PutOnce("job/1/epoch/1", "second"));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_FALSE(again->committed);
  EXPECT_EQ(Entry("job/1/epoch/1"), (MetaEntry{"job/1/epoch/1", "first", 1, 1}));
}

TEST_P(MetaStoreConformance, ListsAreSortedByBytesAndFilteredByPrefix) {
  for (const char* key : {"b/2", "a", "b/10", "b", "b/1", "bc", "b~", "B", "!"}) Put(key, key);
  EXPECT_THAT(KeysOf(List({})), ElementsAre("!", "B", "a", "b", "b/1", "b/10", "b/2", "bc", "b~"));
  EXPECT_THAT(KeysOf(List({.prefix = "b/"})), ElementsAre("b/1", "b/10", "b/2"));
  EXPECT_THAT(KeysOf(List({.prefix = "b/1"})), ElementsAre("b/1", "b/10"));
  EXPECT_THAT(KeysOf(List({.prefix = "c"})), ElementsAre());
  EXPECT_THAT(KeysOf(List({.prefix = "b~"})), ElementsAre("b~"));
  EXPECT_THAT(KeysOf(List({.prefix = "b/", .after = "b/1"})), ElementsAre("b/10", "b/2"));
  EXPECT_THAT(KeysOf(List({.prefix = "b/", .after = "b/11"})), ElementsAre("b/2"));
  EXPECT_THAT(KeysOf(List({.prefix = "b/", .after = "a"})), ElementsAre("b/1", "b/10", "b/2"));
  EXPECT_THAT(KeysOf(List({.prefix = "b/", .after = "c"})), ElementsAre());
  EXPECT_EQ(List({.prefix = "b/2"}).entries[0], (MetaEntry{"b/2", "b/2", 1, 1}));
}

TEST_P(MetaStoreConformance, PagesOfAnyLimitGiveTheWholeList) {
  std::vector<std::string> all;
  for (int i = 10; i < 27; ++i) {
    all.push_back(absl::StrCat("list/", i));
    Put(all.back(), "v");
  }
  Put("lisp", "before");
  Put("lists", "behind");
  for (size_t limit = 1; limit <= all.size() + 1; ++limit) {
    std::vector<std::string> read;
    MetaListRequest request{.prefix = "list/", .limit = limit};
    size_t pages = 0;
    do {
      const MetaPage page = List(request);
      ASSERT_LE(page.entries.size(), limit);
      for (const std::string& key : KeysOf(page)) read.push_back(key);
      request.after = page.next;
      ++pages;
    } while (!request.after.empty());
    EXPECT_EQ(read, all) << "limit " << limit;
    EXPECT_EQ(pages, (all.size() + limit - 1) / limit) << "no empty page, limit " << limit;
  }
}

TEST_P(MetaStoreConformance, APageEndsWhenItsValuesAreLarge) {
  const std::string half(kMetaListValueBytes / 2, 'v');
  for (const char* key : {"a", "b", "c"}) Put(key, half);
  const MetaPage page = List({});
  EXPECT_THAT(KeysOf(page), ElementsAre("a", "b"));
  EXPECT_EQ(page.next, "b");
}

TEST_P(MetaStoreConformance, ListLimitsOutOfRangeAreRefused) {
  for (const size_t limit : {size_t{0}, kMetaListEntriesMax + 1}) {
    const auto page = store_->List({.limit = limit});
    EXPECT_EQ(page.status().code(), absl::StatusCode::kInvalidArgument) << limit;
  }
  EXPECT_EQ(store_->List({.prefix = "a b"}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store_->List({.after = "\n"}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(MetaStoreConformance, BadKeysAreRefusedEverywhere) {
  const std::string long_key(kMetaKeyBytesMax + 1, 'k');
  for (const std::string& key :
       {std::string(), std::string("/"), std::string("/a"), std::string("a/"), std::string("a//b"),
        std::string("a b"), std::string("a\n"), std::string("\1revision"), std::string("\0", 1),
        std::string("\xc3\xa4"), std::string("\x7f"), long_key}) {
    EXPECT_EQ(store_->Get(key).status().code(), absl::StatusCode::kInvalidArgument) << key;
    ExpectInvalid(PutAlways(key, "v"), "metadata key");
    MetaTxn remove;
    remove.deletes = {key};
    ExpectInvalid(remove, "metadata key");
    MetaTxn compare;
    compare.compares = {MetaCompare::Absent(key)};
    ExpectInvalid(compare, "metadata key");
  }
  ExpectInvalid(PutAlways(long_key, "v"), "513 bytes is above the limit of 512");
  EXPECT_TRUE(List({}).entries.empty());
}

TEST_P(MetaStoreConformance, TheLongestKeyAndTheLargestValueAreAccepted) {
  const std::string key(kMetaKeyBytesMax, 'k');
  const std::string value(kMetaValueBytesMax, 'v');
  Put(key, value);
  EXPECT_TRUE(Entry(key).value == value);
  EXPECT_EQ(KeysOf(List({})), std::vector<std::string>{key});
}

TEST_P(MetaStoreConformance, TooLargeValuesAreRefusedByName) {
  const std::string value(kMetaValueBytesMax + 1, 'v');
  ExpectInvalid(PutAlways("big", value), "'big' has 16777217 bytes, above the limit of 16777216");
  MetaTxn compare;
  compare.compares = {MetaCompare::ValueIs("big", value)};
  ExpectInvalid(compare, "16777217");
  MetaTxn many;
  for (const char* key : {"a", "b", "c"}) {
    many.puts.push_back({key, std::string(kMetaTxnValueBytesMax / 3 + 1, 'v')});
  }
  ExpectInvalid(many, "33554432");
  EXPECT_TRUE(List({}).entries.empty());
}

TEST_P(MetaStoreConformance, TransactionsThatContradictThemselvesAreRefused) {
  MetaTxn two_puts;
  two_puts.puts = {{"a", "1"}, {"b", "1"}, {"a", "2"}};
  ExpectInvalid(two_puts, "'a' is written twice");
  MetaTxn put_and_delete;
  put_and_delete.puts = {{"a", "1"}};
  put_and_delete.deletes = {"a"};
  ExpectInvalid(put_and_delete, "'a' is written twice");
  MetaTxn many;
  for (size_t i = 0; i <= kMetaTxnOperationsMax; ++i) many.deletes.push_back(absl::StrCat("k", i));
  ExpectInvalid(many, "129");
  many.deletes.pop_back();
  EXPECT_EQ(Commit(many), 0u);
}

TEST_P(MetaStoreConformance, NoIncrementOfManyThreadsIsLost) {
  constexpr int kThreads = 8;
  constexpr int kIncrements = 25;
  Put("counter", "0");
  const auto increment = [&] {
    for (int done = 0; done < kIncrements;) {
      const auto now = store_->Get("counter");
      ASSERT_TRUE(now.ok() && now->has_value());
      int count = 0;
      ASSERT_TRUE(absl::SimpleAtoi((*now)->value, &count));
      MetaTxn txn = PutAlways("counter", absl::StrCat(count + 1));
      txn.compares = {MetaCompare::ModRevisionIs("counter", (*now)->mod_revision)};
      const auto result = store_->Txn(txn);
      ASSERT_TRUE(result.ok()) << result.status();
      if (result->committed) ++done;
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(increment);
  for (std::thread& thread : threads) thread.join();
  const MetaEntry end = Entry("counter");
  EXPECT_EQ(end.value, absl::StrCat(kThreads * kIncrements));
  EXPECT_EQ(end.mod_revision, 1u + kThreads * kIncrements) << "one revision per commit";
}

TEST_P(MetaStoreConformance, OneOfManyWritersOfAWriteOnceRecordWins) {
  constexpr int kThreads = 8;
  std::vector<int> committed(kThreads, 0);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      const auto result = store_->Txn(PutOnce("once", absl::StrCat(i)));
      committed[i] = result.ok() && result->committed;
    });
  }
  for (std::thread& thread : threads) thread.join();
  int winners = 0;
  for (int i = 0; i < kThreads; ++i) {
    if (committed[i] == 0) continue;
    ++winners;
    EXPECT_EQ(Entry("once").value, absl::StrCat(i));
  }
  EXPECT_EQ(winners, 1);
}

TEST_P(MetaStoreConformance, APageShowsATransactionWholeOrNotAtAll) {
  MetaTxn first;
  first.puts = {{"pair/a", "0"}, {"pair/b", "0"}};
  Commit(first);
  std::thread writer([&] {
    for (int i = 1; i <= 50; ++i) {
      MetaTxn txn;
      txn.puts = {{"pair/a", absl::StrCat(i)}, {"pair/b", absl::StrCat(i)}};
      Commit(txn);
    }
  });
  std::string seen;
  while (seen != "50") {
    const MetaPage page = List({.prefix = "pair/"});
    if (page.entries.size() != 2 || page.entries[0].value != page.entries[1].value) {
      ADD_FAILURE() << "torn page";
      break;
    }
    seen = page.entries[0].value;
  }
  writer.join();
}

std::unique_ptr<MetaStore> MakeRocksDb(const StoreFolder& folder) {
  auto store = OpenStore(folder.store());
  EXPECT_TRUE(store.ok()) << store.status();
  return store.ok() ? *std::move(store) : nullptr;
}

INSTANTIATE_TEST_SUITE_P(
    Backends, MetaStoreConformance,
    testing::Values(Backend{"Memory",
                            [](const StoreFolder&) { return std::make_unique<MemoryMetaStore>(); }},
                    Backend{"RocksDb", MakeRocksDb}),
    [](const testing::TestParamInfo<Backend>& backend) { return backend.param.name; });

}  // namespace
}  // namespace ballast::server
