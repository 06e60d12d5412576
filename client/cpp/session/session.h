// An attached trainer as its program sees it: calls that begin something in the SessionCore, wait
// for its end on the caller's thread, and return only when the lent memory is back. Comes from:
// Client::Attach. Goes to: SessionCore; JobOptions::on_pause. Thread safety: as Client. One lock is
// held by the core and by the transport's thread while it handles an event; waiting gives it up. A
// transport calls back into the lease without it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ballast/client.h"
#include "ballast/v1/control.pb.h"
#include "client/cpp/job/activity.h"
#include "client/cpp/job/gpu_tensors.h"
#include "client/cpp/job/job_view.h"
#include "client/cpp/job/lent_memory.h"
#include "client/cpp/session/home_rendezvous.h"
#include "client/cpp/session/session_core.h"
#include "client/cpp/transport/link.h"
#include "common/base/sync.h"
#include "common/job/job_spec.h"
#include "common/tensor/layout.h"

namespace ballast::client {

class Session final : public Client {
 public:
  // Makes the transport, whose callbacks run under `mu`.
  using MakeTransport = std::function<std::unique_ptr<Transport>(Mutex* mu)>;

  // Opens the links and uploads (lead trainer) or receives (InitMode::kBroadcast, a resumed job)
  // `weights`, one address per tensor, which are lent until the return. Errors: as Client::Attach.
  static absl::StatusOr<std::unique_ptr<Session>> Open(const JobOptions& options,
                                                       const AttachedJob& attached,
                                                       const MakeTransport& make_transport,
                                                       const std::vector<void*>& weights,
                                                       std::unique_ptr<GpuTensors> gpu = nullptr);
  // Breaks the links off, and waits until the transport has let go of all lent memory.
  ~Session() override;

  absl::Status Extend(const std::vector<Tensor>& tensors, const std::vector<TensorBuffers>& buffers,
                      InitMode init, const std::vector<uint32_t>& schedule_groups) override;
  absl::StatusOr<RoundReport> Step(const std::vector<Hyper>& hyper,
                                   const std::vector<TensorBuffers>& buffers,
                                   double loss_scale) override;
  absl::Status BeginStep(const std::vector<Hyper>& hyper, const std::vector<TensorBuffers>& buffers,
                         double loss_scale) override;
  absl::Status BeginUpload(const std::vector<TensorBuffers>& buffers) override;
  absl::Status BeginStateUpload(const StateUpload& upload,
                                const std::vector<TensorBuffers>& buffers) override;
  absl::StatusOr<bool> Wait(std::chrono::milliseconds timeout, RoundReport* report) override;
  absl::Status SetUserState(std::string state) override;
  std::string user_state() const override;
  absl::Status FetchState(const std::vector<StateBuffers>& buffers,
                          std::vector<uint64_t>* tensor_step) override;
  absl::Status FetchWeights(const std::vector<TensorBuffers>& buffers) override;
  absl::StatusOr<uint64_t> Snapshot(const std::string& name, uint32_t keep) override;
  absl::Status Leave() override;
  void Abort() override;
  std::vector<std::string> state_arrays() const override;
  bool resumed() const override;
  uint64_t round() const override;
  uint64_t opt_step() const override;
  Policy policy() const override;
  uint32_t world() const override;
  uint32_t epoch() const override;
  std::vector<DealtExtent> dealt() const override;
  void SetSumsOf(uint32_t epoch) override;
  uint64_t job_id() const override;
  uint32_t server_count() const override;
  TransferCounters counters() const override;
  Rendezvous* rendezvous() override { return rendezvous_.get(); }

 private:
  Session(const JobOptions& options, const AttachedJob& attached,
          const MakeTransport& make_transport, std::unique_ptr<GpuTensors> gpu);

  // session.cc: waiting.
  absl::Status Start(const v1::Plan& plan);
  // Waits until every server has said Welcome. Errors: SERVER_LOST at `deadline`; the session's.
  absl::Status AwaitWelcomes(Time deadline);
  // Waits for the activity's end and for the lent memory; false when `timeout` passed first.
  absl::StatusOr<bool> AwaitActivity(std::chrono::nanoseconds timeout);
  // As AwaitActivity without a limit, polling JobOptions::should_stop while attaching. The
  // activity, which has ended.
  absl::StatusOr<Activity> FinishActivity();
  // After an error: waits until no link and no frame can touch the caller's memory.
  bool Drain(Time deadline);
  // Calls `method` of the job's home and parses the answer into `reply`, reporting pauses meanwhile
  // unless `quiet`; then any thread may call it. Errors: as Transport::Start; the session's.
  absl::Status CallHome(const char* method, const google::protobuf::MessageLite& request,
                        std::chrono::milliseconds timeout, google::protobuf::MessageLite* reply,
                        bool quiet = false);
  // Called by a waiting caller about ten times a second. Errors: the session's; CANCELLED while
  // attaching.
  absl::Status Poll();
  // Tells the caller's observer, on the caller's thread.
  void ReportPauses();
  absl::Status BeginRound(absl::StatusOr<RoundInput> input) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // session_calls.cc: initial weights, fetches, growth.
  absl::Status Initialize(InitMode init, const std::vector<void*>& weights, uint32_t first_extent);
  // Into an existing job: receives all weights, after the lead trainer's upload if one is due.
  absl::Status TakeOver(const std::vector<void*>& weights);
  absl::Status UploadInitial(const std::vector<void*>& weights, uint32_t first_extent,
                             bool from_first);
  absl::Status FetchWeightsInto(const std::vector<void*>& weights);
  absl::Status AskToExtend(const v1::ExtendRequest& request, v1::ExtendReply* reply);
  absl::StatusOr<v1::ExtendRequest> MakeExtendRequest(const JobSpec& grown, const Layout& layout,
                                                      const std::vector<void*>& weights,
                                                      InitMode init);

  // Before and after an activity: waits for the caller's GPU work, and makes its later work see the
  // new weights. Both do nothing without a GPU.
  absl::Status BeginOnGpu();
  absl::Status EndOnGpu() { return gpu_ == nullptr ? absl::OkStatus() : gpu_->End(); }
  DeviceStaging* staging() const { return gpu_ == nullptr ? nullptr : gpu_->staging(); }

  const JobOptions options_;
  std::unique_ptr<HomeRendezvous> rendezvous_;
  const std::unique_ptr<GpuTensors> gpu_;  // before the lease, which may hold its pinned memory
  BufferLease lease_;                      // before the transport, which may hold lent memory
  mutable Mutex mu_;
  CondVar changed_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<SessionCore> core_ ABSL_GUARDED_BY(mu_);
  uint32_t sums_of_ ABSL_GUARDED_BY(mu_) = 0;    // as SetSumsOf
  std::string user_state_ ABSL_GUARDED_BY(mu_);  // travels with the next round
  bool opened_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace ballast::client
