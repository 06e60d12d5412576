// Forms of ballastctl's output.
#include "tools/ctl/output.h"

#include "gtest/gtest.h"

namespace ballast::tools {
namespace {

TEST(Output, YamlHasTheValuesOfTheJson) {
  EXPECT_EQ(YamlOfJson(R"({"jobs": [{"name": "a: \"b\"", "round": 3, "servers": [0, 1]},
                                    {"name": "c", "round": 4, "servers": []}], "ok": true})"),
            "jobs:\n"
            "  - name: \"a: \\\"b\\\"\"\n"
            "    round: 3\n"
            "    servers:\n"
            "      - 0\n"
            "      - 1\n"
            "  - name: \"c\"\n"
            "    round: 4\n"
            "    servers: []\n"
            "ok: true\n");
  EXPECT_EQ(YamlOfJson(R"({"servers": []})"), "servers: []\n");
  EXPECT_EQ(YamlOfJson(R"({"config": {}, "n": null})"), "config: {}\nn: null\n");
}

TEST(Output, ColoursMarkStatesAndHeadings) {
  EXPECT_EQ(Coloured("JOB  STATE\na    failed\nb    running\n"),
            "\x1b[1mJOB  STATE\x1b[0m\na    \x1b[31mfailed\x1b[0m\nb    \x1b[32mrunning\x1b[0m\n");
}

}  // namespace
}  // namespace ballast::tools
