#include "server/extents/first_pass.h"

#include <utility>

namespace ballast::server {

FirstPass::FirstPass(Deps deps)
    : deps_(std::move(deps)),
      walk_([this](uint32_t extent) { Measure(extent); }, deps_.storage_failed) {}

void FirstPass::Run(const Layout& layout, std::shared_ptr<const StepPlan> plan,
                    std::vector<uint32_t> extents) {
  layout_ = &layout;
  plan_ = std::move(plan);
  found_.clear();
  if (extents.empty()) return Finish();
  walk_.Begin(deps_.state->store.tier(), std::move(extents));
}

void FirstPass::Measure(uint32_t extent) {
  const GradientView grad = deps_.contributions->Gradient(*layout_, extent);
  auto squares = std::make_shared<ExtentSquares>(*layout_, extent);
  deps_.workers->Submit(
      TileCount(*layout_, extent),
      [store = &deps_.state->store, layout = layout_, plan = plan_, extent, squares,
       step = StepOf(*plan_, *layout_, extent, grad.data, grad.dtype, nullptr),
       engine = deps_.strand->KeepAlive()](size_t tile) {
        store->SquareTile(*layout, extent, static_cast<uint32_t>(tile), step, squares.get());
      },
      [this, extent, squares, engine = deps_.strand->KeepAlive()] {
        deps_.strand->Dispatch([this, extent, squares] { OnMeasured(extent, *squares); });
      });
}

void FirstPass::OnMeasured(uint32_t extent_id, const ExtentSquares& squares) {
  walk_.Release(extent_id, 0);
  const Extent& extent = layout_->extents()[extent_id];
  std::vector<RunSquares>* const found = &found_[extent_id];
  for (uint32_t i = 0; i < extent.run_count; ++i) {
    const uint32_t tensor = layout_->runs()[extent.first_run + i].tensor;
    if (plan_->by_tensor[tensor] == nullptr) continue;
    const optim::TensorSquares sum = squares.Sum(i);
    found->push_back({.extent = extent_id, .tensor = tensor, .p = sum.p, .u = sum.u});
  }
  walk_.over() ? Finish() : walk_.Pump();
}

void FirstPass::Finish() {
  std::vector<RunSquares> all;
  for (const auto& [extent, runs] : std::exchange(found_, {})) {
    all.insert(all.end(), runs.begin(), runs.end());
  }
  plan_ = nullptr;
  deps_.measured(std::move(all));
}

}  // namespace ballast::server
