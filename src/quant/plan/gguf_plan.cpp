#include "quant/plan/gguf_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "export/gguf/asked_types.h"
#include "export/gguf/tensor_source.h"
#include "model/gguf/gguf_names.h"
#include "model/linear_source.h"
#include "quant/plan/disk_reads.h"
#include "quant/plan/memory_limit.h"
#include "quant/plan/schemes.h"

namespace llmq {
namespace {

void check_intent(const Recipe& recipe) {
  const auto refuse = [&](const char* key, std::string message, std::string hint) {
    fail(ErrorKind::kUsage, {std::move(message), recipe.source, key, std::move(hint)});
  };
  check_kept_columns(recipe);
  if (find_gguf_method(recipe.methods) == nullptr)
    refuse("method", "a GGUF is written by method rtn or imatrix", "write method: imatrix");
  if (recipe.scheme)
    refuse("scheme", "a GGUF has types of its own",
           gguf_file_type_hint(recipe.scheme->weight_type == WeightType::kFloat4));
  if (!recipe.targets.empty() || recipe.ignore != Recipe().ignore)
    refuse(!recipe.targets.empty() ? "targets" : "ignore", "the types inside a GGUF follow llama.cpp's mixes",
           "leave it out, and name what shall have another type: overrides: [{match: NAME, scheme: bf16}]");
  for (const SchemeOverride& one : recipe.overrides)
    if (one.scheme && !one.gguf_type)
      refuse("overrides", fmt::format("'{}' was given a scheme, and a GGUF has types of its own", one.match),
             "write dense, or one of " + gguf_tensor_type_names());
  if (recipe.rotates_values)
    fail(ErrorKind::kUnsupported,
         {"what rotated values do to the types of a GGUF was not measured", recipe.source, "rotate.value",
          "write format: compressed-tensors, or leave it out"});
  if (recipe.versioned)
    fail(ErrorKind::kUnsupported,
         {"a GGUF is one file and has no versions", recipe.source, "output.versioned", "name a .gguf file"});
  if (recipe.target_bits)
    fail(ErrorKind::kUnsupported,
         {"a budget of bits is not for format gguf, whose mixes choose types themselves", recipe.source,
          "target_bits", "write scheme: q4_k_m"});
  if (recipe.kv_cache)
    fail(ErrorKind::kUnsupported, {"a GGUF has no place for scales of a KV cache", recipe.source,
                                   "kv_cache.dtype", "write format: compressed-tensors, or leave it out"});
  if (!(recipe.mixed.bits.empty() && recipe.mixed.schemes.empty()))
    refuse(recipe.mixed.bits.empty() ? "mixed.schemes" : "mixed.bits",
           "the types inside a GGUF follow llama.cpp's mixes", "leave it out");
  if (recipe.vision)
    fail(ErrorKind::kUnsupported,
         {"a GGUF has the decoder alone, and its vision tower would be a file of its own", recipe.source,
          "vision", "write format: compressed-tensors, or leave it out"});
}

void resolve_importance(const Recipe& recipe, GgufPlan& plan) {
  const GgufOptions& options = recipe.gguf;
  const bool weighted = find_gguf_method(recipe.methods)->is_weighted;
  plan.importance = !options.importance.empty() ? options.importance : weighted ? "calibration" : "none";
  const auto contradict = [&](const char* message, const char* hint) {
    fail(ErrorKind::kUsage, {message, recipe.source, "gguf.importance", hint});
  };
  if (weighted && plan.importance == "none")
    contradict("method imatrix rounds with importance", "write method: rtn");
  if (!weighted && plan.importance != "none")
    contradict("method rtn rounds without importance", "write method: imatrix");
  plan.search = options.search == "best" || (options.search.empty() && weighted) ? BlockSearch::kBest
                                                                                 : BlockSearch::kGgml;
  plan.imatrix_out = options.imatrix_out;
  if (!plan.imatrix_out.empty() && !plan.needs_calibration())
    fail(ErrorKind::kUsage, {"there is no importance of a calibration text to write", recipe.source,
                             "gguf.imatrix_out", "write method: imatrix, without gguf.importance"});
}

void resolve_calibration(const Recipe& recipe, const ModelSpec& spec, GgufPlan& plan) {
  plan.calibration = recipe.calibration;
  if (plan.needs_calibration()) plan.chunk_tokens = calibration_chunk(recipe, spec);
}

AskedGgufTypes asked_types(const Recipe& recipe, const GgufPlan& plan, const Checkpoint& checkpoint,
                           const ModelSpec& spec, std::span<const GgufMixTensor> tensors) {
  std::vector<GgufTypeRequest> requests;
  for (const SchemeOverride& one : recipe.overrides) requests.push_back({one.match, one.gguf_type});
  return find_asked_types(requests, plan.file_type, checkpoint, spec, tensors, recipe.source, "overrides");
}

// Whether the file has a linear in blocks.
bool is_in_blocks(const GgufPlan& plan, const ModelSpec& spec, const LinearSpec& linear) {
  DType type = plan.file_type->default_type;
  if (plan.asked_types.empty()) return is_block_type(type);
  for (const std::string& name : gguf_names(*gguf_family(spec), name_in_decoder(spec, linear.weight.tensor)))
    if (const auto asked = plan.asked_types.find(name); asked != plan.asked_types.end()) type = asked->second;
  return is_block_type(type);
}

// Tensors that are not read in bands: what is prepared for the forward pass, unpacked, or has its rows in
// another order.
std::set<std::string> held_whole(const Checkpoint& checkpoint, const ModelSpec& spec, const GgufPlan& plan) {
  const LinearSource source = LinearSource::open(checkpoint);
  const GgufFamily* const family = gguf_family(spec);
  const GgufWidths widths = gguf_widths(spec);
  const auto is_of_parts = [&](const LinearSpec& linear) {
    if (family == nullptr || family->part == nullptr) return false;
    const std::vector<std::string> names = gguf_names(*family, name_in_decoder(spec, linear.weight.tensor));
    return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return family->part(name_in_gguf_block(name), widths).has_value();
    });
  };
  std::set<std::string> whole;
  for (const BlockSpec& block : spec.blocks)
    for (const LinearSpec& linear : block.linears)
      if (plan.needs_calibration() || source.is_packed(linear.module) || linear.rope_heads > 0 ||
          is_of_parts(linear))
        for (std::string& name : source.tensors_of(linear)) whole.insert(std::move(name));
  return whole;
}

}  // namespace

Plan GgufPlan::forward() const {
  Plan plan;
  plan.compute = compute;
  plan.calibration = calibration;
  plan.needs_calibration = needs_calibration();
  plan.chunk_tokens = chunk_tokens;
  plan.keep_inputs = keep_inputs;
  plan.ranks = ranks;
  plan.joining_bytes = joining_bytes;
  return plan;
}

std::string GgufPlan::asked_text() const {
  std::map<DType, int> counts;
  for (const auto& [tensor, type] : asked_types) ++counts[type];
  std::string text;
  for (const auto& [type, count] : counts)
    text += fmt::format("{}{} of {}", text.empty() ? "" : ", ", dtype_row(type).name,
                        count == 1 ? "1 tensor" : fmt::format("{} tensors", count));
  return text;
}

std::uint64_t GgufPlan::Tensor::bytes_out() const {
  const auto& row = dtype_row(dtype);
  return static_cast<std::uint64_t>(shape.elements() / row.block_elements) *
         static_cast<std::uint64_t>(row.block_bytes);
}

std::uint64_t GgufPlan::bytes_out() const {
  std::uint64_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes += tensor.bytes_out();
  return bytes;
}

std::uint64_t GgufPlan::gathered_bytes() const {
  std::uint64_t most = 0;
  for (const Tensor& tensor : tensors)
    most = std::max(most, largest_slab_bytes(tensor.shape, tensor.dtype, Checkpoint::kBandElements));
  return ranks == 1 ? 0 : static_cast<std::uint64_t>(ranks) * most;
}

double GgufPlan::bits_per_weight() const {
  double weights = 0;
  for (const Tensor& tensor : tensors) weights += static_cast<double>(tensor.shape.elements());
  return weights == 0 ? 0 : 8.0 * static_cast<double>(bytes_out()) / weights;
}

std::vector<ReadPass> gguf_read_passes(const GgufPlan& plan, const Checkpoint& checkpoint,
                                       const ModelSpec& spec, bool has_importance,
                                       const std::set<std::string>& written) {
  std::vector<ReadPass> passes;
  const auto add = [&](const char* what, std::uint64_t bytes) {
    if (bytes != 0) passes.push_back({what, bytes});
  };
  if (plan.needs_calibration() && !has_importance) {
    // What is kept from its first reading on is counted with the file's tensors; those of a GGUF are read
    // apart.
    const LinearSource source = LinearSource::open(checkpoint);
    std::uint64_t linears = 0, kept = 0;
    for (const BlockSpec& block : spec.blocks)
      for (const LinearSpec& linear : block.linears) {
        const LinearSource::ReadBytes bytes = source.bytes_to_read(linear);
        linears += bytes.all - bytes.kept;
      }
    if (checkpoint.is_gguf())
      for (const StoredTensor& tensor : checkpoint.tensors())
        kept += Checkpoint::is_kept(tensor) ? Checkpoint::bytes_to_read(tensor) : 0;
    add("importance: embedding rows",
        embedding_row_reads(checkpoint, spec, plan.chunk_tokens, plan.calibration.samples,
                            plan.calibration.sequence_length));
    add("importance: every linear's forward pass", linears);
    add("importance: small tensors", kept);
  }
  std::uint64_t linears = 0, others = 0;
  for (const GgufPlan::Tensor& tensor : plan.tensors) {
    if (written.count(tensor.name) != 0) continue;
    (tensor.name.starts_with("blk.") && tensor.shape.rank() > 1 ? linears : others) += tensor.bytes_read;
  }
  add("embedding, head, norms and biases, rounded or copied", others);
  add("linears, rounded", linears);
  return passes;
}

GgufPlan make_gguf_plan(Io& io, const Recipe& recipe, const Checkpoint& checkpoint, const ModelSpec& spec,
                        Compute compute, std::uint64_t memory_limit, const PlannedDevices& shared) {
  check_intent(recipe);
  refuse_packed(checkpoint);
  if (checkpoint.is_gguf() && !recipe.adapter.empty())
    fail(ErrorKind::kUnsupported,
         {"a GGUF is made of another one tensor by tensor, without a place for an adapter", recipe.source,
          "adapter", "fold it first: llmq merge MODEL.gguf --lora DIR OUT, and quantize that"});
  GgufPlan plan;
  plan.ranks = shared.ranks;
  plan.joining_bytes = shared.joining_bytes;
  plan.method = recipe.methods.front();
  plan.file_type = find_gguf_file_type(recipe.gguf.type);
  plan.compute = compute;
  resolve_importance(recipe, plan);
  resolve_calibration(recipe, spec, plan);
  const std::unique_ptr<GgufTensorSource> source =
      open_gguf_tensors(io, checkpoint, spec, is_of_converter(*plan.file_type));
  std::vector<DType> types =
      choose_gguf_types(*plan.file_type, gguf_mix_model(spec), source->tensors(), plan.importance != "none");
  AskedGgufTypes asked = asked_types(recipe, plan, checkpoint, spec, source->tensors());
  plan.asked_types = std::move(asked.types);
  give_asked_types(plan.asked_types, source->tensors(), types);
  if (plan.importance != "none" && std::none_of(types.begin(), types.end(), is_block_type))
    fail(ErrorKind::kUsage,
         {"importance changes nothing in " + recipe.gguf.type, recipe.source, "method", "write method: rtn"});
  bool keeps_codes = false;  // of MXFP4, or of NVFP4
  for (std::size_t i = 0; i < types.size(); ++i) {
    const GgufMixTensor& tensor = source->tensors()[i];
    plan.tensors.push_back({tensor.name, types[i], tensor.shape, source->bytes_to_read(i)});
    keeps_codes = keeps_codes || is_copied(tensor, types[i], false);
  }
  plan.warnings = told_of_source(recipe, checkpoint, spec, [&](const LinearSpec& linear) {
    const StoredTensor& weight = checkpoint.at(linear.weight.tensor);
    const DType stored = weight.view.dtype;
    if (!is_in_blocks(plan, spec, linear)) return false;  // numbers become numbers
    return !keeps_codes || !(weight.exponents || stored == DType::kMXFP4 || stored == DType::kNVFP4);
  });
  plan.warnings.insert(plan.warnings.end(), asked.warnings.begin(), asked.warnings.end());
  if (plan.needs_calibration() && compute == Compute::kBFloat16 && !shared.own_products.empty())
    plan.warnings.push_back(shared.own_products);
  PlanCosts costs = estimate_costs(plan, checkpoint, spec);
  if (!fits_in_limit(costs.peak_bytes, memory_limit) && plan.needs_calibration()) {
    plan.keep_inputs = false;
    costs = estimate_costs(plan, checkpoint, spec);
  }
  check_memory_limit(costs.peak_bytes, memory_limit, recipe.source);
  return plan;
}

PlanCosts estimate_costs(const GgufPlan& plan, const Checkpoint& checkpoint, const ModelSpec& spec) {
  const Plan forward = plan.forward();
  PlanCosts costs;
  costs.memory = gguf_memory(forward, checkpoint, spec,
                             held_bytes(checkpoint, spec, held_whole(checkpoint, spec, plan),
                                        plan.needs_calibration() ? plan.chunk_tokens : 0),
                             plan.gathered_bytes());
  costs.peak_bytes = total_bytes(costs.memory);
  costs.bytes_in = checkpoint.tensor_bytes();
  costs.bytes_out = plan.bytes_out();
  costs.reads = gguf_read_passes(plan, checkpoint, spec);
  costs.flops = forward_flops(forward, spec);
  return costs;
}

}  // namespace llmq
