// Overloaded: one visitor for std::visit out of several lambdas.
// Comes from: callers with a std::variant. Goes to: std::visit.
// Thread safety: that of the lambdas.
#pragma once

namespace ballast {

template <typename... Visitors>
struct Overloaded : Visitors... {
  using Visitors::operator()...;
};
template <typename... Visitors>
Overloaded(Visitors...) -> Overloaded<Visitors...>;

}  // namespace ballast
