// HomeTable: the jobs of which this server is the home, unless they rest: a HomeJob for each name.
// Comes from: HomeJobs, which drives them. Goes to: the parts that ask about a job.
// Thread safety: owned by the directory's strand.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/home/home_job.h"
#include "server/quota/job_share.h"

namespace ballast::server {

class HomeTable {
 public:
  struct Entry {
    uint64_t life = 0;  // unique among all entries that ever were here
    HomeJob job;
  };

  const std::map<QualifiedName, Entry>& all() const { return entries_; }
  // Null: there is no such job, or not that life of it. Valid until it is removed.
  Entry* At(const home::Life& life) {
    Entry* const entry = At(life.name);
    return entry == nullptr || entry->life != life.life ? nullptr : entry;
  }
  Entry* At(const QualifiedName& name) {
    const auto it = entries_.find(name);
    return it == entries_.end() ? nullptr : &it->second;
  }
  const HomeJob* Find(const QualifiedName& name) const {
    const auto it = entries_.find(name);
    return it == entries_.end() ? nullptr : &it->second.job;
  }
  const HomeJob* Find(uint64_t job) const {
    for (const auto& [name, entry] : entries_) {
      if (entry.job.plan().job == job) return &entry.job;
    }
    return nullptr;
  }

  home::Life Add(HomeJob job) {
    const QualifiedName name = job.plan().name();
    const uint64_t life = next_life_++;
    entries_.emplace(name, Entry{life, std::move(job)});
    return {name, life};
  }
  void Remove(const QualifiedName& name) { entries_.erase(name); }

  // A job of which some peer may still say that it has ended, or null; with `tenant` one of its.
  const HomeJob* FindUnconfirmed(const std::string* tenant) const {
    for (const auto& [name, entry] : entries_) {
      if (tenant != nullptr && name.tenant != *tenant) continue;
      if (entry.job.unconfirmed()) return &entry.job;
    }
    return nullptr;
  }

  // Jobs of each tenant.
  JobCounts CountByTenant() const {
    JobCounts counts;
    for (const auto& [name, entry] : entries_) ++counts[name.tenant];
    return counts;
  }
  // Those of `tenant` that no server has made yet.
  size_t Pending(const std::string& tenant) const {
    return static_cast<size_t>(
        std::count_if(entries_.begin(), entries_.end(), [&tenant](const auto& entry) {
          return !entry.second.job.made() && entry.first.tenant == tenant;
        }));
  }

  // The status of jobs not made yet, or starting again.
  std::vector<JobStatus> Attaching() const {
    std::vector<JobStatus> jobs;
    for (const auto& [name, entry] : entries_) {
      const std::optional<HomeJob::Attaching> world = entry.job.attaching();
      if (!world.has_value()) continue;
      JobStatus job{.name = name.name,
                    .tenant = name.tenant,
                    .job = entry.job.plan().job,
                    .state = "attaching"};
      job.world = world->world;
      for (uint32_t s = 0; s < job.world; ++s) {
        job.slots.push_back({.slot = s, .state = "attached"});
      }
      for (const uint32_t s : world->missing) job.slots[s].state = "absent";
      jobs.push_back(std::move(job));
    }
    return jobs;
  }

 private:
  std::map<QualifiedName, Entry> entries_;
  uint64_t next_life_ = 1;
};

}  // namespace ballast::server
