// A whole job over a model of two blocks, as the tool runs it: from the plan to the published output.
#pragma once
#include <functional>
#include <string>

#include "export/output/model_writer.h"
#include "export/output/published_output.h"
#include "export/output/unfinished_output.h"
#include "io/digest_cache.h"
#include "quant/pipeline/pipeline.h"
#include "tests/support/full_journal_io.h"
#include "tests/unit/export/tiny_checkpoint.h"

namespace llmq::testing {

inline CalibrationSet tiny_samples() {
  CalibrationSet set;
  Sequence sequence(7);
  for (int s = 0; s < 3; ++s) {
    std::vector<std::int32_t>& ids = set.samples.emplace_back();
    for (int t = 0; t < 20; ++t) ids.push_back(static_cast<std::int32_t>(sequence.next(96)));
  }
  return set;
}

// Of a journal that has room for what the job is and for its first block.
inline constexpr int kRecordsToTheFirstBlock = 2;

struct SmallJob {
  std::string recipe;
  OutputTarget target;
  int threads = 1;
  void (*change)(ModelSpec& spec) = nullptr;  // of the model as the checkpoint has it
  std::int64_t chunk_tokens = 0;              // 0: as the plan has them, all samples in one chunk
  int further_devices = 0;                    // of one thread each
  std::int64_t experts_at_once = 0;           // 0: as the plan has them
  std::function<void()> on_step = [] {};

  struct Result {
    std::string digest, version;
    bool unchanged = false;
    QuantizeReport report;
  };

  Result run(Io& io, const Checkpoint& checkpoint) const {
    OutputTarget to = target;
    to.job = Json::object({{"recipe", recipe}});
    Result result;
    if (const auto found = find_unchanged(io, to, [&](const Path& path) { return file_sha256(io, path); })) {
      settle_publication(io, to);
      return {found->report.at("digest").as_string(), found->version, true, {}};
    }
    ModelSpec spec = ModelSpec::read(checkpoint);
    if (change != nullptr) change(spec);
    Plan plan =
        make_plan(Recipe::parse(recipe + "calibration: {samples: 3, sequence_length: 20}\n", "r.yaml"),
                  checkpoint, spec, Compute::kFloat32, 1, 0);
    if (chunk_tokens != 0) plan.chunk_tokens = chunk_tokens;
    if (experts_at_once != 0) plan.experts_at_once = experts_at_once;
    const auto backend = make_cpu_backend(threads);
    PipelineOptions options;
    for (int i = 0; i < further_devices; ++i) options.further_devices.push_back(make_cpu_backend(1));
    options.on_step = [this](const std::string&, const std::string&) { on_step(); };
    const auto writer = open_writer(io, plan.format, to, checkpoint, spec, plan.modules, plan.ignored,
                                    {plan.kv_cache, plan.rotated});
    result.report = run_pipeline(plan, checkpoint, spec, tiny_samples(), *backend, *writer, options);
    result.digest = writer->complete();
    const Json report = Json::object({{"schema", kReportSchema},
                                      {"job", to.job},
                                      {"digest", result.digest},
                                      {"run", result.report.to_json()}});
    result.version = writer->publish({{kReportFile, report.dump() + "\n"}});
    return result;
  }
};

}  // namespace llmq::testing
