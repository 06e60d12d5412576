// Full names of the gRPC methods of Ballast, as in a call's path.
// Comes from: the services of proto/ballast/v1, and gRPC's own of health. Goes to: server/rpc,
// client/cpp, tools. Thread safety: constants.
#pragma once

namespace ballast::method {

inline constexpr char kAttach[] = "/ballast.v1.Control/Attach";
inline constexpr char kExtend[] = "/ballast.v1.Control/Extend";
inline constexpr char kRendezvous[] = "/ballast.v1.Control/Rendezvous";
inline constexpr char kJobStatus[] = "/ballast.v1.Control/JobStatus";
inline constexpr char kExchange[] = "/ballast.v1.Data/Exchange";
inline constexpr char kPeerHello[] = "/ballast.v1.Peer/Hello";
inline constexpr char kPeerCreateJob[] = "/ballast.v1.Peer/CreateJob";
inline constexpr char kPeerExtendJob[] = "/ballast.v1.Peer/ExtendJob";
inline constexpr char kPeerDropJob[] = "/ballast.v1.Peer/DropJob";
inline constexpr char kPeerWhichRest[] = "/ballast.v1.Peer/WhichRest";
inline constexpr char kPeerCompareJobs[] = "/ballast.v1.Peer/CompareJobs";
inline constexpr char kPeerSeal[] = "/ballast.v1.Peer/Seal";
inline constexpr char kPeerAdoptEpoch[] = "/ballast.v1.Peer/AdoptEpoch";
inline constexpr char kPeerVote[] = "/ballast.v1.Peer/Vote";
inline constexpr char kPeerSnapshot[] = "/ballast.v1.Peer/Snapshot";
inline constexpr char kPeerRestoreJob[] = "/ballast.v1.Peer/RestoreJob";
inline constexpr char kPeerExport[] = "/ballast.v1.Peer/Export";
inline constexpr char kPeerImportJob[] = "/ballast.v1.Peer/ImportJob";
inline constexpr char kAdminStatus[] = "/ballast.v1.Admin/Status";
inline constexpr char kAdminListJobs[] = "/ballast.v1.Admin/ListJobs";
inline constexpr char kAdminDeleteJob[] = "/ballast.v1.Admin/DeleteJob";
inline constexpr char kAdminRetryJob[] = "/ballast.v1.Admin/RetryJob";
inline constexpr char kAdminCreateSnapshot[] = "/ballast.v1.Admin/CreateSnapshot";
inline constexpr char kAdminListSnapshots[] = "/ballast.v1.Admin/ListSnapshots";
inline constexpr char kAdminVerifySnapshot[] = "/ballast.v1.Admin/VerifySnapshot";
inline constexpr char kAdminDeleteSnapshot[] = "/ballast.v1.Admin/DeleteSnapshot";
inline constexpr char kAdminRestoreSnapshot[] = "/ballast.v1.Admin/RestoreSnapshot";
inline constexpr char kAdminExport[] = "/ballast.v1.Admin/Export";
inline constexpr char kAdminImport[] = "/ballast.v1.Admin/Import";
inline constexpr char kAdminListTenants[] = "/ballast.v1.Admin/ListTenants";
inline constexpr char kAdminReload[] = "/ballast.v1.Admin/Reload";
inline constexpr char kHealthCheck[] = "/grpc.health.v1.Health/Check";
inline constexpr char kHealthWatch[] = "/grpc.health.v1.Health/Watch";

}  // namespace ballast::method
