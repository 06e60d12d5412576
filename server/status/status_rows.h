// The tables of a status page: their columns and contents.
// Comes from: StatusReply. Goes to: status_text as plain text, status_page as HTML.
// Thread safety: pure functions. Texts are as sent by peers: the code that shows them escapes them.
#pragma once

#include <string>
#include <vector>

#include "ballast/v1/admin.pb.h"

namespace ballast::server {

using Row = std::vector<std::string>;
using Replies = std::vector<v1::StatusReply>;

// "12.3 MiB": for people, not for parsing.
std::string ShortBytes(uint64_t bytes);
// "serving", or the server's present state instead.
std::string StateOf(const v1::StatusReply& server);
// "250 us", "1.5 ms", "12.0 s".
std::string SecondsText(double seconds);
// "45 s", "17 min", "5 h 3 min", "12 days".
std::string TimeText(double seconds);
double Seconds(uint64_t nanoseconds);

// The columns of a round common to two tables: COLLECT, VOTE, STEP, PUSHED, GRAD NORM and LAST.
Row RoundCells(const v1::FinishedRound& round);

// A tenant's name for people: messages leave out "default".
std::string TenantName(const std::string& tenant);
// Rows whose first cell is a tenant (TENANT in the first row); the column is dropped if every
// tenant is "default".
std::vector<Row> WithTenants(std::vector<Row> rows);

// Each begins with the headings, the only row if there is no data.
std::vector<Row> ServerRows(const Replies& servers);
std::vector<Row> DiskRows(const Replies& servers);
std::vector<Row> JobRows(const Replies& servers);    // a job that Stalls() is in state "waiting"
std::vector<Row> SlotRows(const Replies& servers);   // extents owed by trainers
std::vector<Row> RoundRows(const Replies& servers);  // of each job, newest first
std::vector<Row> WorkRows(const Replies& servers);
std::vector<Row> EventRows(const Replies& servers);  // newest first

}  // namespace ballast::server
