// StatusReply for people and for scripts.
// Comes from: admin_service, ballastctl. Goes to: /statusz, ballastctl's output.
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "ballast/v1/admin.pb.h"
#include "server/status/status_rows.h"

namespace ballast::server {

// Columns are as wide as their widest cell; `rows` begins with the headings.
std::string TextTable(const std::vector<Row>& rows);

// Tables of servers, jobs and the seats of each job; a seat with extents owed for the open round
// shows how many, and the first in push order. Then, if the replies have them, the last rounds,
// works under way and the last events. Not escaped: call Inert() before printing to a terminal.
std::string StatusTable(const std::vector<v1::StatusReply>& servers);

// {"servers": [...]}, field names as in admin.proto, job ids as hexadecimal text.
std::string StatusJson(const std::vector<v1::StatusReply>& servers);

// `text`, which is UTF-8, as a quoted JSON string; control characters are escaped.
std::string JsonText(const std::string& text);

// The same for durable jobs; as JSON {"jobs": [...]}.
std::string JobsTable(const v1::ListJobsReply& reply);
std::string JobsJson(const v1::ListJobsReply& reply);

// The same for snapshots; as JSON {"snapshots": [...]}, times as seconds since 1970.
std::string SnapshotsTable(const v1::ListSnapshotsReply& reply);
std::string SnapshotsJson(const v1::ListSnapshotsReply& reply);

// A finished export, as a JSON object; "seconds" from the request to the end.
std::string ExportJson(const v1::ExportReply& reply);

// A finished import: JobsJson's object of one job, and "bytes", "seconds" and whether optimizer
// "state" was included.
std::string ImportJson(const v1::ImportReply& reply);

}  // namespace ballast::server
