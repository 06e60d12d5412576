// JobShare: whether a tenant may begin one more of the jobs that a server holds at a time. No
// tenant gets more than half of them, unless the quota file gives it a number of jobs: tenants do
// not shut each other out by default. Comes from: HomeJobs. Thread safety: plain values. Pure: no
// clock, no lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace ballast::server {

// How many jobs each tenant has under way.
using JobCounts = std::map<std::string, size_t>;

enum class JobRoom {
  kFree,
  kShareFull,  // the tenant has its half
  kFull,       // the tenants have all of them
};

// Whether `tenant` may begin a job where there may be `jobs_max` in all. `halves`: tenants are told
// apart, and this one has no number of jobs in the quota file.
JobRoom RoomForJob(const JobCounts& counts, const std::string& tenant, uint32_t jobs_max,
                   bool halves);

// The most that a tenant without such a number may have of `jobs_max`: half, and at least one.
size_t HalfOfJobs(uint32_t jobs_max);

// For an operator: "a 32, b 4", those with most first.
std::string CountsText(const JobCounts& counts);

}  // namespace ballast::server
