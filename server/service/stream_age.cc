#include "server/service/stream_age.h"

namespace ballast::server {
namespace {

constexpr uint64_t kJitterSteps = 2001;  // -10.00 % to +10.00 %
constexpr int64_t kWhole = 10000;

}  // namespace

StreamAge::StreamAge(Time max, Time grace, Time born, uint64_t chance) {
  // An odd factor spreads numbers that differ in few bits.
  const uint64_t mixed = (chance * 0x9E3779B97F4A7C15u) >> 32;
  const auto step = static_cast<int64_t>(mixed % kJitterSteps) - 1000;
  const bool ends = max.count() > 0;
  soft_end_ = ends ? born + max / kWhole * (kWhole + step) : Time::max();
  hard_end_ = ends ? soft_end_ + grace : Time::max();
}

bool StreamAge::Over(Time now) const { return now >= (between_rounds_ ? soft_end_ : hard_end_); }

}  // namespace ballast::server
