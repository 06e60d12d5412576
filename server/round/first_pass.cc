#include "server/round/first_pass.h"

#include <utility>

namespace ballast::server {

void FirstPass::Run(const Layout& layout, std::shared_ptr<const StepPlan> plan,
                    std::vector<uint32_t> extents) {
  layout_ = &layout;
  plan_ = std::move(plan);
  extents_ = std::move(extents);
  next_ = 0;
  under_way_ = 0;
  found_.clear();
  if (extents_.empty()) return Finish();
  deps_.state->store.tier()->BeginSweep(extents_);
  Pump();
}

void FirstPass::Pump() {
  Tier* const tier = deps_.state->store.tier();
  while (next_ < extents_.size() && under_way_ < tier->sweep_depth()) {
    const uint32_t extent = extents_[next_++];
    ++under_way_;
    tier->Acquire(extent, [this, extent](const absl::Status& status) {
      if (status.ok()) {
        Measure(extent);
      } else {
        deps_.storage_failed(status);
      }
    });
  }
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
  --under_way_;
  deps_.state->store.tier()->Release(extent_id, 0);
  const Extent& extent = layout_->extents()[extent_id];
  std::vector<RunSquares>* const found = &found_[extent_id];
  for (uint32_t i = 0; i < extent.run_count; ++i) {
    const uint32_t tensor = layout_->runs()[extent.first_run + i].tensor;
    if (plan_->by_tensor[tensor] == nullptr) continue;
    const optim::TensorSquares sum = squares.Sum(i);
    found->push_back({.extent = extent_id, .tensor = tensor, .p = sum.p, .u = sum.u});
  }
  found_.size() == extents_.size() ? Finish() : Pump();
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
