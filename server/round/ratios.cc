#include "server/round/ratios.h"

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "server/optim/lamb.h"
#include "server/round/step_plan.h"

namespace ballast::server {
namespace {

absl::Status Mismatch(uint32_t server, const std::string& message) {
  return ReasonedError(absl::StatusCode::kAborted, Reason::kVoteMismatch,
                       absl::StrCat("the second vote of server ", server, " ", message,
                                    "; all servers must run the same version of the program"),
                       {.server = static_cast<int>(server)});
}

// Takes the squares out of the votes, extent by extent, as the layout has them.
class SquaresOfVotes {
 public:
  explicit SquaresOfVotes(const RatioInput& input) : input_(input) {}

  // Per tensor: the squares of its extents, in the order of their ids.
  absl::StatusOr<std::vector<std::vector<optim::TensorSquares>>> Take() {
    const Layout& layout = input_.layout;
    std::vector<std::vector<optim::TensorSquares>> squares(layout.tensors().size());
    for (uint32_t e = 0; e < layout.extents().size(); ++e) {
      const Extent& extent = layout.extents()[e];
      for (uint32_t i = 0; i < extent.run_count; ++i) {
        const uint32_t tensor = layout.runs()[extent.first_run + i].tensor;
        if (!input_.present[tensor]) continue;
        BALLAST_ASSIGN_OR_RETURN(const RunSquares run, Next(e, tensor));
        squares[tensor].push_back({.p = run.p, .u = run.u});
      }
    }
    for (const auto& [server, vote] : input_.votes) {
      const size_t more = vote.squares->size() - taken_[server];
      if (more != 0) return Mismatch(server, absl::StrCat("has ", more, " squares too many"));
    }
    return squares;
  }

 private:
  absl::StatusOr<RunSquares> Next(uint32_t extent, uint32_t tensor) {
    const uint32_t server = input_.plan.owner[extent];
    const std::vector<RunSquares>& given = *input_.votes.at(server).squares;
    const size_t at = taken_[server]++;
    const bool has = at < given.size();
    if (has && given[at].extent == extent && given[at].tensor == tensor) return given[at];
    const std::string wanted = absl::StrCat("tensor ", tensor, " in extent ", extent);
    if (!has) return Mismatch(server, absl::StrCat("lacks the squares of ", wanted));
    return Mismatch(server,
                    absl::StrCat("has the squares of tensor ", given[at].tensor, " in extent ",
                                 given[at].extent, " where those of ", wanted, " belong"));
  }

  const RatioInput& input_;
  std::map<uint32_t, size_t> taken_;  // by server
};

}  // namespace

bool TakesTwoPasses(const Optimizer& optimizer, const Decision& decision) {
  const bool steps = decision.applied && !IsUpload(decision.upload);
  return steps && FindOptimizer(optimizer.kind)->passes == 2;
}

absl::StatusOr<std::vector<float>> MakeRatios(const RatioInput& input) {
  for (const uint32_t server : input.plan.servers) {
    const auto vote = input.votes.find(server);
    if (vote == input.votes.end() || !vote->second.squares.has_value()) {
      return std::vector<float>();
    }
  }
  BALLAST_ASSIGN_OR_RETURN(const auto squares, SquaresOfVotes(input).Take());
  BALLAST_ASSIGN_OR_RETURN(const std::shared_ptr<StepPlan> plan,
                           MakeStepPlan(OptimizerOf(input.plan.spec), input.layout, input.present,
                                        input.tensor_step, input.decision));
  std::vector<float> ratios(input.layout.tensors().size(), 1.0f);
  for (size_t t = 0; t < ratios.size(); ++t) {
    if (plan->by_tensor[t] == nullptr) continue;
    ratios[t] = optim::TrustRatio(optim::SumExtents(squares[t]), *plan->by_tensor[t]);
  }
  return ratios;
}

}  // namespace ballast::server
