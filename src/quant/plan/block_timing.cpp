#include "quant/plan/block_timing.h"

#include <map>
#include <numeric>
#include <random>

#include "base/sha256.h"
#include "export/formats/packed_formats.h"
#include "quant/pipeline/block_quantizer.h"

namespace llmq {
namespace {

// Does what a writer with a journal does to a linear, but for the file.
class PackingWriter final : public UnpublishedWriter {
 public:
  explicit PackingWriter(const Plan& plan) : format_(packed_format(plan.format)) {
    for (const PlannedModule& module : plan.modules) planned_[module.module] = &module;
  }
  void add_quantized(const std::string& module, const QuantizedMatrix& matrix) override {
    for (const PackedTensor& tensor : format_.pack(*planned_.at(module), matrix)) sha256_hex(tensor.bytes);
  }
  void add_dense(const std::string&, DType, const Shape&, std::span<const std::byte>) override {}
  void append_dense(const std::string&, DType, const Shape&, std::span<const std::byte>) override {}

 private:
  const PackedFormatRow& format_;
  std::map<std::string, const PlannedModule*> planned_;
};

// The modules of the spec's block, as wide as they are there.
Plan plan_of_block(const Plan& plan, const BlockSpec& block, std::int64_t samples) {
  Plan one = plan;
  one.calibration.samples = samples;
  one.modules.clear();
  for (const LinearSpec& linear : block.linears)
    for (PlannedModule module : plan.modules) {
      if (module.module != linear.module) continue;
      module.out_features = linear.out_features;
      module.in_features = linear.in_features;
      int& group = module.scheme.group_size;
      if (group > 0) group = std::gcd(group, static_cast<int>(linear.in_features));
      one.modules.push_back(module);
    }
  return one;
}

void run_on_samples(QuantizeRun& run, const CalibrationSet& samples) {
  const auto length = static_cast<std::int64_t>(samples.samples.front().size());
  const ForwardContext context = make_forward_context(run.spec, run.backend, run.plan.compute, length);
  ActivationStream stream(context, samples, run.plan.chunk_tokens, run.plan.keep_inputs);
  if (run.plan.kv_cache) stream.measure_kv();
  stream.embed(run.source.checkpoint(), samples);
  std::optional<OriginalStream> original;
  if (takes_back_upstream(run.plan)) {
    original.emplace(make_original_stream(std::span(&context, 1), samples, run.plan.chunk_tokens,
                                          [](std::uint64_t) { return nullptr; }));
    original->stream.embed(run.source.checkpoint(), original->samples);
    run.original = &*original;
  }
  run.clock.charge("embedding");
  quantize_block_on_samples(run, 0, stream);
}

}  // namespace

CalibrationSet made_up_samples(std::int64_t samples, std::int64_t length, std::int64_t vocabulary) {
  CalibrationSet set;
  std::minstd_rand random(1);  // the standard fixes its numbers
  for (std::int64_t s = 0; s < samples; ++s) {
    std::vector<std::int32_t>& ids = set.samples.emplace_back();
    for (std::int64_t t = 0; t < length; ++t)
      ids.push_back(static_cast<std::int32_t>(static_cast<std::int64_t>(random()) % vocabulary));
  }
  return set;
}

SecondsByPart time_block(const Plan& plan, const Checkpoint& checkpoint, const ModelSpec& spec,
                         Backend& backend, std::int64_t samples) {
  const Plan one = plan_of_block(plan, spec.blocks.front(), samples);
  const LinearSource source = LinearSource::open(checkpoint);
  PipelineOptions options;
  options.allow_nonfinite = true;  // the run itself says what it thinks of them
  PackingWriter writer(one);
  QuantizeReport report;
  const CalibrationSet set = made_up_samples(samples, plan.calibration.sequence_length, spec.vocab_size);
  PartClock clock;
  BackgroundWriter writing(writer);
  QuantizeRun run(one, source, spec, backend, options, report, clock, make_rounding(one), writing);
  if (plan.needs_calibration)
    run_on_samples(run, set);
  else
    quantize_block_by_rounding(run, 0);
  writing.finish();
  clock.charge("writing");
  return clock.seconds();
}

}  // namespace llmq
