// Target attach: a trainer's requests to a home, down to the job's layout. A specification that is
// taken has as many elements as its shapes say, its extents hold each of them once, and its message
// can be written and read again.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/numeric/int128.h"
#include "common/base/check.h"
#include "common/job/job_spec.h"
#include "proto/convert/frame_codec.h"
#include "proto/convert/job_convert.h"
#include "server/convert/control_convert.h"
#include "server/round/job_plan.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/kinds.h"
#include "tests/fuzz/targets/specs.h"

namespace ballast::fuzz {
namespace {

constexpr uint64_t kElementsMax = uint64_t{1} << 44;
constexpr size_t kMessageMax = 1 << 20;
// A target of more extents costs time and finds nothing else.
constexpr uint64_t kExtentsMax = 1024;

// By arithmetic that cannot overflow: the product, or more than kElementsMax.
uint64_t Product(const std::vector<int64_t>& shape) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  absl::uint128 product = 1;
  for (const int64_t dim : shape) {
    product = std::min<absl::uint128>(product * static_cast<uint64_t>(dim), kElementsMax + 1);
  }
  return absl::Uint128Low64(product);
}

// Each tensor's elements stand in extents once, in order.
void CheckRuns(const Layout& layout) {
  std::vector<uint64_t> next(layout.tensors().size(), 0);
  for (uint32_t e = 0; e < layout.extents().size(); ++e) {
    const Extent& extent = layout.extents()[e];
    BALLAST_CHECK(extent.elements > 0 && extent.elements <= layout.extent_elements());
    uint32_t at = 0;
    for (uint32_t i = 0; i < extent.run_count; ++i) {
      const Run& run = layout.runs()[extent.first_run + i];
      BALLAST_CHECK(run.extent_offset == at && run.tensor_offset == next[run.tensor]);
      BALLAST_CHECK(layout.tensors()[run.tensor].group == extent.group);
      BALLAST_CHECK(layout.tensors()[run.tensor].dtype == extent.dtype);
      at += run.elements;
      next[run.tensor] += run.elements;
    }
    BALLAST_CHECK(at == extent.elements);
    uint32_t end = 0;
    for (const ChunkRange& range : ChunkRanges(layout, e, 256, {})) {
      BALLAST_CHECK(range.offset_bytes == end && range.length_bytes > 0);
      end += range.length_bytes;
    }
    BALLAST_CHECK(end == layout.ExtentWireBytes(e));
  }
  for (size_t t = 0; t < next.size(); ++t) BALLAST_CHECK(next[t] == layout.tensors()[t].elements);
}

void CheckLayout(const JobSpec& spec) {
  uint64_t total = 0;
  for (const TensorSpec& tensor : spec.tensors) {
    const uint64_t elements = Product(tensor.shape);
    BALLAST_CHECK(elements <= kElementsMax);
    total += elements;
  }
  if (spec.extent_elements == 0 || total / spec.extent_elements > kExtentsMax) return;
  const absl::StatusOr<Layout> layout = server::LayoutOfSpec(spec);
  if (!layout.ok()) return;
  BALLAST_CHECK(layout->total_elements() == total);
  CheckRuns(*layout);
  for (const uint32_t owner : PlanOwners(*layout, 3)) BALLAST_CHECK(owner < 3);
}

void CheckSpec(const JobSpec& spec) {
  if (!ValidateJobSpec(spec, JobLimits()).ok()) return;
  CheckLayout(spec);
  v1::JobSpec message;
  ToProto(spec, &message);
  const absl::StatusOr<JobSpec> again = JobSpecFromProto(message);
  BALLAST_CHECK(again.ok() && FirstDifference(spec, *again).empty());
}

class Attach : public FuzzTarget {
 public:
  std::vector<std::string> Seeds() const override {
    v1::AttachRequest broadcast;
    broadcast.mutable_protocol()->set_max(1);
    *broadcast.mutable_spec() = GoodSpec();
    broadcast.set_init(v1::INIT_MODE_BROADCAST);
    broadcast.set_min_world(1);
    v1::AttachRequest equal = broadcast;
    *equal.mutable_spec() = GoodScheduledSpec();
    equal.set_init(v1::INIT_MODE_EQUAL);
    equal.set_wait_timeout_ms(1000);
    for (int i = 0; i < equal.spec().tensors_size(); ++i) equal.add_tensor_crc32c(7);
    v1::ExtendRequest extend;
    extend.set_group_count(3);
    extend.set_init(v1::INIT_MODE_BROADCAST);
    *extend.add_tensors() = GoodSpec().tensors(0);
    return {JoinKind(0, broadcast), JoinKind(0, equal), JoinKind(1, extend)};
  }

  void Run(absl::string_view input) const override {
    const KindInput parts = SplitKind(input, 2);
    const Payload bytes = Payload::FromString(std::string(parts.rest));
    if (parts.kind == 0) {
      v1::AttachRequest request;
      if (ParseMessage(bytes, kMessageMax, &request).ok()) RunAttach(request);
    } else {
      v1::ExtendRequest request;
      if (ParseMessage(bytes, kMessageMax, &request).ok()) RunExtend(request);
    }
  }

  std::string Mutate(const std::string& input, FuzzRandom* random) const override {
    return MutateKind({&attach_, &extend_}, input, random);
  }

 private:
  static void RunAttach(const v1::AttachRequest& request) {
    (void)ChooseProtocol(request.protocol(), "the trainer");
    const absl::StatusOr<server::AttachCall> call = server::AttachFromProto(request);
    if (!call.ok()) return;
    BALLAST_CHECK(call->wait <= std::chrono::hours(24) && call->wait.count() >= 0);
    BALLAST_CHECK(call->min_world >= 1 &&
                  (call->min_world <= call->spec.world || call->spec.world == 0));
    BALLAST_CHECK(call->tensor_crc32c.empty() ||
                  call->tensor_crc32c.size() == call->spec.tensors.size());
    CheckSpec(call->spec);
  }

  // The grown job, as the home forms it.
  static void RunExtend(const v1::ExtendRequest& request) {
    const absl::StatusOr<server::ExtendCall> call = server::ExtendFromProto(request);
    if (!call.ok()) return;
    JobSpec spec = *JobSpecFromProto(GoodSpec());
    spec.tensors.insert(spec.tensors.end(), call->tensors.begin(), call->tensors.end());
    spec.group_count = call->group_count;
    CheckSpec(spec);
  }

  const v1::AttachRequest attach_;
  const v1::ExtendRequest extend_;
};

}  // namespace

std::unique_ptr<FuzzTarget> AttachTarget() { return std::make_unique<Attach>(); }

}  // namespace ballast::fuzz
