// A temporary folder for one store, removed at the end of the test, and short ways to read one.
// Comes from: the tests of server/meta. Goes to: nothing. Thread safety: thread-compatible.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>

#include "server/meta/rocksdb_store.h"

namespace ballast::server {

class StoreFolder {
 public:
  StoreFolder() {
    std::string pattern = testing::TempDir() + "/ballast-meta-XXXXXX";
    if (mkdtemp(pattern.data()) != nullptr) path_ = pattern;
  }
  ~StoreFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  StoreFolder(const StoreFolder&) = delete;
  StoreFolder& operator=(const StoreFolder&) = delete;

  const std::string& path() const { return path_; }
  // A directory in the folder that is not there yet.
  std::string store() const { return path_ + "/data/meta"; }

 private:
  std::string path_;
};

inline absl::StatusOr<std::unique_ptr<MetaStore>> OpenStore(const std::string& directory,
                                                            rocksdb::Env* env = nullptr) {
  RocksDbMetaStoreOptions options;
  options.directory = directory;
  options.env = env;
  return OpenRocksDbMetaStore(options);
}

// A transaction of one put without a condition.
inline MetaTxn PutAlways(const std::string& key, const std::string& value) {
  MetaTxn txn;
  txn.puts.push_back(MetaPut{key, value});
  return txn;
}

// The value of `key`, or a text that says why there is none.
inline std::string ValueOf(MetaStore* store, const std::string& key) {
  const auto entry = store->Get(key);
  if (!entry.ok()) return entry.status().ToString();
  return entry->has_value() ? (*entry)->value : "(absent)";
}

}  // namespace ballast::server
