// /statusz for a browser.
#include "server/status/status_page.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast::server {
namespace {

using testing::HasSubstr;
using testing::Not;

v1::StatusReply Reply() {
  v1::StatusReply reply;
  reply.set_id(3);
  reply.set_address("127.0.0.1:7000");
  reply.set_serving(true);
  reply.set_resident_bytes(uint64_t{2} << 30);
  reply.set_up_ns(uint64_t{3 * 3600 + 61} * 1'000'000'000);
  v1::PeerStatus* peer = reply.add_peers();
  peer->set_id(4);
  v1::DiskStatus* disk = reply.add_disks();
  disk->set_directory("snapshot");
  disk->set_answers(true);
  disk->set_free_bytes(uint64_t{3} << 30);
  disk->set_size_bytes(uint64_t{10} << 30);
  v1::JobStatus* job = reply.add_jobs();
  job->set_name("gpt");
  job->set_state("failed");
  job->set_tier("nvme");
  job->set_error("tensor <script>alert(1)</script> \x1b[31m & \"more\"");
  v1::SlotStatus* slot = job->add_slots();
  slot->set_slot(1);
  slot->set_owed_extents(5);
  slot->set_first_owed(17);
  v1::FinishedRound* round = job->add_rounds();
  round->set_round(41);
  round->set_end("skipped");
  round->set_last_slot(1);
  v1::Work* work = reply.add_works();
  work->set_kind("export");
  work->set_name("<img src=x onerror=alert(2)>");
  v1::Event* event = reply.add_events();
  event->set_severity("WARN");
  event->set_text("</table><script>alert(3)</script>");
  return reply;
}

TEST(StatusPage, ShowsAllThatIsKnown) {
  const std::string page = StatusHtml(Reply());
  for (const char* text :
       {"Ballast server 3", "127.0.0.1:7000", "server 4 <span class=\"bad\">unreachable</span>",
        "gpt", "nvme", "extent 17", "41", "skipped", "slot 1", "export", "WARN", "2.0 GiB",
        "3 h 1 min", "snapshot", "70 %", "loads itself again"}) {
    EXPECT_THAT(page, HasSubstr(text));
  }
}

TEST(StatusPage, TextOfOthersStaysText) {
  const std::string page = StatusHtml(Reply());
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, Not(HasSubstr("<img")));
  EXPECT_THAT(page, Not(HasSubstr("\x1b")));
  EXPECT_THAT(page, HasSubstr("&lt;script&gt;alert(1)&lt;/script&gt; \\u001b[31m &amp; &quot;"));
  EXPECT_THAT(page, HasSubstr("&lt;/table&gt;&lt;script&gt;alert(3)"));
}

TEST(StatusPage, TheFirstLineSaysWhetherAllIsWell) {
  v1::StatusReply reply;
  reply.set_serving(true);
  EXPECT_THAT(StatusHtml(reply), HasSubstr("<body>\n<p class=\"verdict good\">All is well"));
  v1::JobStatus* job = reply.add_jobs();
  job->set_name("<gpt>");
  job->set_state("running");
  EXPECT_THAT(StatusHtml(reply), HasSubstr("<td data-is=\"State\" class=\"good\">running</td>"));
  reply.add_peers()->set_id(1);
  job->set_phase("prepared");
  job->add_votes_missing(1);
  const std::string page = StatusHtml(reply);
  EXPECT_THAT(page, HasSubstr("<body>\n<p class=\"verdict bad\">Not well: it does not reach server "
                              "1; job &lt;gpt&gt; waits for server 1 in round 0</p>"));
  EXPECT_THAT(page, HasSubstr("<td data-is=\"State\" class=\"bad\">waiting</td>"
                              "<td data-is=\"Waits for\">server 1</td>"));
}

TEST(StatusPage, APeerThatHasToldItsAdminPortIsALink) {
  v1::StatusReply reply;
  v1::PeerStatus* peer = reply.add_peers();
  peer->set_id(2);
  peer->set_reachable(true);
  EXPECT_THAT(StatusHtml(reply), HasSubstr("<td data-is=\"Peers\">server 2</td>"));
  peer->set_admin("h-2:7001\"><script>");
  EXPECT_THAT(
      StatusHtml(reply),
      HasSubstr("<a href=\"http://h-2:7001&quot;&gt;&lt;script&gt;/statusz\">server 2</a>"));
}

TEST(StatusPage, AWarningStandsAboveTheTablesAsText) {
  const std::string page = StatusHtml(v1::StatusReply(), "<b>open</b>");
  EXPECT_THAT(page, HasSubstr("<p class=\"bad\">&lt;b&gt;open&lt;/b&gt;</p>"));
  EXPECT_LT(page.find("open"), page.find("<h2>"));
}

TEST(StatusPage, SaysWhereThereIsNothing) {
  EXPECT_THAT(StatusHtml(v1::StatusReply()), HasSubstr("<h2>Jobs</h2>\n<p>none</p>"));
}

TEST(StatusPage, EachMarkOfHtmlIsEscaped) {
  EXPECT_EQ(HtmlText("<a href='x' id=\"y\">&amp;"),
            "&lt;a href=&#39;x&#39; id=&quot;y&quot;&gt;&amp;amp;");
}

}  // namespace
}  // namespace ballast::server
