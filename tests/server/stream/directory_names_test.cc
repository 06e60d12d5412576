// The names callers read for a server's directories.
#include "server/stream/directory_names.h"

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/cord.h"
#include "common/base/reason.h"
#include "gtest/gtest.h"
#include "proto/convert/grpc_status.h"

namespace ballast::server {
namespace {

const DirectoryNames& Names() {
  static const auto& names = *new DirectoryNames({{"/srv/data/exports/", "storage.export_dir"},
                                                  {"", "storage.snapshot_dir"},
                                                  {"/srv/data", "storage.data_dir"}});
  return names;
}

DirectoryNames DataIn(const std::string& path) {
  return DirectoryNames(std::vector<DirectoryNames::Entry>{{path, "storage.data_dir"}});
}

TEST(DirectoryNamesTest, TheLongestPathThatFitsGivesWayToItsSetting) {
  EXPECT_EQ(Names().Outward("/srv/data/exports/warm is there already"),
            "storage.export_dir/warm is there already");
  EXPECT_EQ(Names().Outward("cannot open /srv/data/jobs/7/log-0: no such file"),
            "cannot open storage.data_dir/jobs/7/log-0: no such file");
  EXPECT_EQ(Names().Outward("\"/srv/data\" and (/srv/data)."),
            "\"storage.data_dir\" and (storage.data_dir).");
}

TEST(DirectoryNamesTest, OtherPathsStay) {
  for (const char* text : {"/srv/database/x", "/mnt/srv/data/x", "/srv/data-2", "no path", ""}) {
    EXPECT_EQ(Names().Outward(text), text);
  }
  EXPECT_EQ(DataIn("/").Outward("/srv/x"), "/srv/x");
}

TEST(DirectoryNamesTest, ARelativeSettingIsFoundByItsWholePath) {
  const std::string whole = std::filesystem::absolute("build/dev").string();
  EXPECT_EQ(DataIn("build/../build/dev").Outward(whole + "/jobs"), "storage.data_dir/jobs");
}

// Files are opened by the path as it is configured, and so do errors have it.
TEST(DirectoryNamesTest, ARelativeSettingIsFoundAtTheFrontOfAPath) {
  EXPECT_EQ(DataIn("run/data/").Outward("cannot open run/data/jobs/7/log-0: no such file"),
            "cannot open storage.data_dir/jobs/7/log-0: no such file");
  EXPECT_EQ(DataIn("./data").Outward("./data/meta is full"), "storage.data_dir/meta is full");
  for (const char* text :
       {"no data", "the data of a/data/b", "data-2/x", "/data/x", "metadata/x"}) {
    EXPECT_EQ(DataIn("data").Outward(text), text) << "a word is no path";
  }
}

TEST(DirectoryNamesTest, SentErrorsContainThePathNeitherInTextNorInDetail) {
  const absl::Status status =
      ReasonedError(absl::StatusCode::kDataLoss, Reason::kStateLost, "/srv/data/jobs/7 is damaged",
                    {.job = "train", .round = 9, .slot = 2, .server = 3, .address = "a:1"});
  const grpc::Status sent = ToGrpc(Names().Outward(status));
  EXPECT_EQ(sent.error_message(), "storage.data_dir/jobs/7 is damaged");
  EXPECT_EQ(sent.error_details().find("/srv/data"), std::string::npos);
  const absl::Status read = FromGrpc(sent);
  EXPECT_EQ(read.message(), "storage.data_dir/jobs/7 is damaged");
  EXPECT_EQ(ReasonOf(read), Reason::kStateLost);
  const ErrorFields fields = FieldsOf(read);
  EXPECT_EQ(fields.job, "train");
  EXPECT_EQ(fields.round, 9u);
  EXPECT_EQ(fields.slot, 2);
  EXPECT_EQ(fields.server, 3);
  EXPECT_EQ(fields.address, "a:1");
}

TEST(DirectoryNamesTest, AStatusKeepsItsCodeAndOtherPayloads) {
  absl::Status status = absl::DataLossError("/srv/data/jobs/7 is damaged");
  status.SetPayload("type", absl::Cord("detail"));
  const absl::Status outward = Names().Outward(status);
  EXPECT_EQ(outward.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(outward.message(), "storage.data_dir/jobs/7 is damaged");
  EXPECT_EQ(outward.GetPayload("type"), absl::Cord("detail"));
  EXPECT_FALSE(outward.GetPayload(kErrorDetailTypeUrl).has_value());
  EXPECT_TRUE(Names().Outward(absl::OkStatus()).ok());
}

}  // namespace
}  // namespace ballast::server
