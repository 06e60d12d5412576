// The class JobOptions for Python. See job_options.h.
#include "client/python/binding/job_options.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "client/python/binding/convert.h"

namespace ballast::python {
namespace nb = nanobind;
namespace {

using Options = client::JobOptions;
using Class = nb::class_<Options>;

// A static loss scale, or the fields of client::DynamicLossScale.
using LossScale = std::variant<double, std::tuple<int64_t, int64_t, int64_t, bool, double>>;
using Schedule = std::tuple<std::string, std::map<std::string, client::ScheduleValue>,
                            std::vector<uint32_t>, uint32_t>;

void SetLossScale(Options& options, const LossScale& given) {
  options.policy.loss_scale.reset();
  options.loss_scale = 1;
  if (const double* const fixed = std::get_if<double>(&given)) {
    options.loss_scale = *fixed;
    return;
  }
  client::DynamicLossScale& dynamic = options.policy.loss_scale.emplace();
  std::tie(dynamic.initial_scale_power, dynamic.loss_scale_window, dynamic.hysteresis,
           dynamic.consecutive_hysteresis, dynamic.min_loss_scale) = std::get<1>(given);
}

void SetSchedule(Options& options, const Schedule& given) {
  client::ScheduleOptions& schedule = options.policy.schedule;
  std::tie(schedule.type, schedule.arguments, schedule.groups, schedule.group_count) = given;
}

// An option that Python gives in seconds.
template <typename Member>
void DefineSeconds(Class* options, const char* name, Member member) {
  options->def_prop_rw(
      name,
      [member](const Options& self) { return std::chrono::duration<double>(self.*member).count(); },
      [member](Options& self, double seconds) { self.*member = Milliseconds(seconds); });
}

// An option that Python gives by name. `place`: from the options to a reference to it.
template <typename Place>
void DefineEnum(Class* options, const char* name, Place place) {
  using E = std::decay_t<decltype(place(std::declval<Options&>()))>;
  options->def_prop_rw(
      name, [place](Options& self) { return std::string(NameOf(place(self))); },
      [place, name](Options& self, const std::string& given) {
        place(self) = ToEnum<E>(name, given);
      });
}

void DefineEnums(Class* options) {
  DefineEnum(
      options, "init", [](Options & o) -> auto& { return o.init; });
  DefineEnum(
      options, "durability", [](Options & o) -> auto& { return o.durability; });
  DefineEnum(
      options, "resume", [](Options & o) -> auto& { return o.resume; });
  DefineEnum(
      options, "device", [](Options & o) -> auto& { return o.device; });
  DefineEnum(
      options, "gradients", [](Options & o) -> auto& { return o.gradients; });
  DefineEnum(
      options, "nonfinite", [](Options & o) -> auto& { return o.nonfinite; });
  DefineEnum(
      options, "profile", [](Options & o) -> auto& { return o.policy.profile; });
}

}  // namespace

void DefineJobOptions(nb::module_& module) {
  Class options(module, "JobOptions");
  options.def(nb::init<>())
      .def_rw("endpoints", &Options::endpoints)
      .def_prop_rw(
          "security", nullptr,
          [](Options& self, const SecurityTuple& files) { self.security = ToSecurity(files); })
      .def_rw("job", &Options::job)
      .def_rw("world_size", &Options::world)
      .def_rw("rank", &Options::slot)
      .def_rw("optimizer", &Options::optimizer)
      .def_rw("optimizer_options", &Options::optimizer_options)
      .def_rw("max_grad_norm", &Options::max_grad_norm)
      .def_prop_rw("loss_scale", nullptr, &SetLossScale)
      .def_prop_rw("schedule", nullptr, &SetSchedule)
      .def_rw("max_consecutive_skips", &Options::max_consecutive_skips)
      .def_rw("tile_elements", &Options::tile_elements)
      .def_rw("extent_elements", &Options::extent_elements)
      .def_rw("time_scale", &Options::time_scale)
      .def_rw("variable_world", &Options::variable_world)
      .def_rw("min_world", &Options::min_world);
  DefineSeconds(&options, "attach_timeout", &Options::attach_timeout);
  DefineSeconds(&options, "reconnect_timeout", &Options::reconnect_timeout);
  DefineEnums(&options);
}

}  // namespace ballast::python
