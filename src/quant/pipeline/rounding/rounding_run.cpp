#include "quant/pipeline/rounding/rounding_run.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/disk/trace_file.h"
#include "quant/pipeline/block_quantizer.h"

namespace llmq {

// A tower's linears come with the first block.
RoundingRun::RoundingRun(QuantizeRun& run) : run_(run), modules_(run.spec.blocks.size()) {
  for (const PlannedModule& module : run.plan.tower) modules_.front().push_back(module.module);
  for (std::size_t block = 0; block < modules_.size(); ++block)
    for (const LinearSpec& linear : run.spec.blocks[block].linears)
      if (run.planned.count(linear.module) != 0) modules_[block].push_back(linear.module);
  const ModelWriter& writer = run.writing.writer();
  for (std::size_t block = 0; block < modules_.size(); ++block)
    if (std::any_of(modules_[block].begin(), modules_[block].end(),
                    [&](const std::string& module) { return writer.lacks_module(module); }))
      mine_.push_back(block);
}

std::size_t RoundingRun::first_block() const { return mine_.empty() ? modules_.size() : mine_.front(); }

std::int64_t RoundingRun::finished_blocks() const {
  std::set<std::string> known;
  for (const ModuleReport& module : run_.report.modules) known.insert(module.module);
  if (known.empty()) return 0;
  return std::count_if(modules_.begin(), modules_.end(), [&](const std::vector<std::string>& modules) {
    return std::all_of(modules.begin(), modules.end(),
                       [&](const std::string& module) { return known.count(module) != 0; });
  });
}

void RoundingRun::round_part(std::size_t block) {
  const ReportMark before = mark_report(run_.report);
  const std::int64_t started_ns = unix_time_ns();
  if (block == 0) round_tower(run_);
  quantize_block_by_rounding(run_, static_cast<int>(block));
  finish_block(run_, before);
  trace_block(run_, block, before, started_ns);
}

void RoundingRun::take_shared() {
  for (Json& findings : run_.writing.share_committed(Committed::kParts))
    found_.push_back(std::move(findings));
}

void RoundingRun::run() {
  Ranks& ranks = run_.writing.writer().ranks();
  const auto rounds = static_cast<std::size_t>(most_of(ranks, static_cast<std::int64_t>(mine_.size())));
  before_ = mark_report(run_.report);
  for (std::size_t round = 0; round < rounds; ++round) {
    if (round < mine_.size()) {
      if (round + 1 < mine_.size()) read_ahead(run_, mine_[round + 1]);
      round_part(mine_[round]);
    }
    take_shared();
  }
}

// A linear whose tensors lie in the shards of two ranks is found by both, and by whoever goes on where one of
// them was killed: it is reported once.
void RoundingRun::finish() {
  take_shared();
  std::map<std::string, std::size_t> places;
  for (const std::vector<std::string>& modules : modules_)
    for (const std::string& module : modules) places.emplace(module, places.size());
  if (run_.writing.writer().ranks().size() > 1) {
    const auto place = [&](const Json& findings) {
      return places.at(findings.at("modules").items().front().at("module").as_string());
    };
    std::stable_sort(found_.begin(), found_.end(),
                     [&](const Json& a, const Json& b) { return place(a) < place(b); });
    run_.report.modules.resize(before_.modules);
    run_.report.warnings.resize(before_.warnings);
    for (const Json& findings : found_) take_record(run_, findings);
  }
  std::vector<ModuleReport>& modules = run_.report.modules;
  std::stable_sort(modules.begin(), modules.end(), [&](const ModuleReport& a, const ModuleReport& b) {
    return places.at(a.module) < places.at(b.module);
  });
  modules.erase(
      std::unique(modules.begin(), modules.end(),
                  [](const ModuleReport& a, const ModuleReport& b) { return a.module == b.module; }),
      modules.end());
}

}  // namespace llmq
