// Status as operators and scripts see it.
#include "server/status/status_text.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast::server {
namespace {

v1::StatusReply Reply() {
  v1::StatusReply reply;
  reply.set_id(1);
  reply.set_address("127.0.0.1:7000");
  reply.set_serving(true);
  reply.set_memory_budget_bytes(3u << 30);
  v1::JobStatus* job = reply.add_jobs();
  job->set_name("gpt");
  job->set_job(0xAB);
  job->set_round(12);
  job->set_error("a \"quoted\"\nline");
  v1::SlotStatus* slot = job->add_slots();
  slot->set_slot(3);
  slot->set_state("pushing");
  slot->set_owed_extents(5);
  slot->set_first_owed(17);
  return reply;
}

TEST(StatusTextTest, TheTableSaysWhoOwesWhat) {
  const std::string table = StatusTable({Reply()});
  EXPECT_THAT(table, testing::HasSubstr("127.0.0.1:7000  serving"));
  EXPECT_THAT(table, testing::HasSubstr("3.0 GiB"));
  EXPECT_THAT(table, testing::ContainsRegex("gpt +1 +12 +3 +pushing +5 +extent 17"));
}

TEST(StatusTextTest, AServerThatDoesNotServeSaysWhatItDoes) {
  v1::StatusReply reply = Reply();
  reply.set_serving(false);
  reply.set_instead("replaying");
  EXPECT_THAT(StatusTable({reply}), testing::HasSubstr("127.0.0.1:7000  replaying"));
  EXPECT_THAT(StatusJson({reply}), testing::HasSubstr(R"("state": "replaying")"));
  reply.set_instead("");
  EXPECT_THAT(StatusTable({reply}), testing::HasSubstr("127.0.0.1:7000  not serving"));
}

TEST(StatusTextTest, JsonIsEscaped) {
  const std::string json = StatusJson({Reply()});
  EXPECT_THAT(json, testing::HasSubstr(R"("error": "a \"quoted\"\u000aline")"));
  EXPECT_THAT(json, testing::HasSubstr(R"("job": "00000000000000ab")"));
  EXPECT_THAT(json, testing::HasSubstr(R"("first_owed": 17)"));
}

TEST(StatusTextTest, NoServersAndNoJobsAreShownAsSuch) {
  EXPECT_THAT(StatusTable({}), testing::HasSubstr("no jobs"));
  EXPECT_EQ(StatusJson({}), "{\"servers\": []}\n");
}

}  // namespace
}  // namespace ballast::server
