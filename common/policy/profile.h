// Which arithmetic a job asks for: ours, or DeepSpeed's with its quirks so that curves overlay.
// Comes from: the job's configuration. Goes to: the loss scaler and the schedules.
// Thread safety: plain values.
#pragma once

namespace ballast {

// kDeepSpeed also reproduces the quirks that docs/schedules.md lists; kExact has none of them.
enum class PolicyProfile { kExact, kDeepSpeed };

}  // namespace ballast
