// Resolving a recipe against a model. The last override that matches a linear wins; an ignored linear is left
// alone whatever overrides say.
#include "quant/plan/plan.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/pattern.h"
#include "device/own_memory.h"
#include "export/formats/packed_formats.h"
#include "export/report/report.h"
#include "model/linear_source.h"
#include "quant/plan/disk_reads.h"
#include "quant/plan/memory_limit.h"
#include "quant/plan/plan_costs.h"
#include "quant/recipe/yaml_fields.h"

namespace llmq {
namespace {

constexpr std::array<int, 3> kDefaultGroups = {128, 64, 32};

// Tokens of whole samples that run at a time.
std::int64_t chunk_of(std::int64_t length) {
  constexpr std::int64_t kChunkTokens = 4096;
  return std::max<std::int64_t>(1, kChunkTokens / length) * length;
}

struct Pattern {
  NamePattern pattern;
  const char* key;
  bool used = false;
};

struct Chosen {
  const LinearSpec* linear;
  SchemeRequest request;
};

struct MethodRow {
  std::vector<std::string> methods;
  FoldMethod fold;
  RoundingMethod rounding;
};
const std::vector<MethodRow>& method_rows() {
  static const std::vector<MethodRow> kRows = {
      {{"rtn"}, FoldMethod::kNone, RoundingMethod::kNearest},
      {{"awq"}, FoldMethod::kAwq, RoundingMethod::kAwqClip},
      {{"awq", "rtn"}, FoldMethod::kAwq, RoundingMethod::kNearest},
      {{"gptq"}, FoldMethod::kNone, RoundingMethod::kGptq},
      {{"awq", "gptq"}, FoldMethod::kAwq, RoundingMethod::kGptq},
      {{"smoothquant"}, FoldMethod::kSmoothQuant, RoundingMethod::kNearest},
      {{"smoothquant", "rtn"}, FoldMethod::kSmoothQuant, RoundingMethod::kNearest},
      {{"smoothquant", "gptq"}, FoldMethod::kSmoothQuant, RoundingMethod::kGptq},
  };
  return kRows;
}

void resolve_method(const Recipe& recipe, Plan& plan) {
  if (recipe.methods.empty())
    fail(ErrorKind::kUsage, {"no method is named", recipe.source, "method", "write method: awq"});
  std::string known;
  for (const MethodRow& row : method_rows()) {
    if (row.methods == recipe.methods) {
      plan.method = joined(row.methods, "+");
      plan.fold = row.fold;
      plan.rounding = row.rounding;
      if (recipe.awq.salient_fp16 == 0) return;
      plan.method = "awq.salient_fp16";
      plan.fold = FoldMethod::kNone;
      plan.rounding = RoundingMethod::kSalient;
      return;
    }
    known += (known.empty() ? "" : ", ") +
             (row.methods.size() == 1 ? row.methods.front() : "[" + joined(row.methods) + "]");
  }
  fail(ErrorKind::kUsage,
       {"[" + joined(recipe.methods) + "] is no method", recipe.source, "method", "there are " + known});
}

void check_intent(const Recipe& recipe, const Checkpoint& checkpoint, const ModelSpec& spec) {
  if (recipe.keep > 0 && !recipe.versioned)
    fail(ErrorKind::kUsage, {"versions are kept where there are versions", recipe.source, "output.keep",
                             "add versioned: true, or leave it out"});
  if (recipe.scheme_is_gguf)
    fail(ErrorKind::kUsage,
         {"scheme " + recipe.gguf.type + " is a type of GGUF, and the format is " + recipe.format,
          recipe.source, "scheme", "write format: gguf"});
  packed_format(recipe.format);
  check_salient(recipe);
  if (!recipe.target_bits && !recipe.mixed.bits.empty())
    fail(ErrorKind::kUsage, {"candidates of mixed precision need a budget", recipe.source, "mixed.bits",
                             "write target_bits: 4.5"});
  if (recipe.calibration.chat_template)
    fail(ErrorKind::kUnsupported, {"chat templates are not in this version", recipe.source,
                                   "calibration.chat_template", "write chat_template: false"});
  if (LinearSource::open(checkpoint).format() != PackedFormat::kNone)
    fail(ErrorKind::kUnsupported, {"the checkpoint is quantized already", checkpoint.path().string(),
                                   "quantization_config", "give the original one"});
  if (spec.blocks.empty())
    fail(ErrorKind::kBadInput, {"the model has no decoder block", checkpoint.path().string(), {}, {}});
}

// Which linears are quantized and what was asked for each.
std::vector<Chosen> choose_linears(const Recipe& recipe, const ModelSpec& spec, Plan& plan) {
  std::vector<Pattern> targets, ignore, overrides;
  for (const std::string& text : recipe.targets) targets.push_back({NamePattern(text), "targets"});
  for (const std::string& text : recipe.ignore) ignore.push_back({NamePattern(text), "ignore"});
  for (const SchemeOverride& o : recipe.overrides) overrides.push_back({NamePattern(o.match), "overrides"});
  const auto any = [](std::vector<Pattern>& patterns, const std::string& name) {
    bool found = false;
    for (Pattern& p : patterns)
      if (p.pattern.matches(name)) found = p.used = true;
    return found;
  };
  std::vector<Chosen> chosen;
  for (const BlockSpec& block : spec.blocks)
    for (const LinearSpec& linear : block.linears) {
      const bool ignored = any(ignore, linear.module);
      if ((!targets.empty() && !any(targets, linear.module)) || ignored) {
        plan.ignored.push_back(linear.module);
        continue;
      }
      SchemeRequest request = recipe.scheme.value_or(SchemeRequest{});
      for (std::size_t i = 0; i < overrides.size(); ++i) {
        if (!overrides[i].pattern.matches(linear.module)) continue;
        overrides[i].used = true;
        request = recipe.overrides[i].scheme;
      }
      chosen.push_back({&linear, request});
    }
  const bool head_ignored = any(ignore, "lm_head"), head_targeted = any(targets, "lm_head");
  if (!spec.tied_head && !head_ignored && !head_targeted && targets.empty())
    plan.warnings.push_back(
        "lm_head stays as it is: this version quantizes the linears of the decoder blocks");
  for (const std::vector<Pattern>* list : {&targets, &ignore, &overrides})
    for (const Pattern& p : *list)
      if (!p.used)
        plan.warnings.push_back(std::string(p.key) + ": '" + p.pattern.text() +
                                "' matches no linear of this model");
  return chosen;
}

// Weights of 8 bits beside 8-bit inputs have a scale per channel, all others one per group.
Granularity granularity_of(const SchemeRequest& r) {
  const bool channel = r.bits == 8 && r.activation_bits == 8;
  return r.granularity.value_or(channel ? Granularity::kChannel : Granularity::kGroup);
}

bool group_is_open(const SchemeRequest& r) {
  return !r.group_size && granularity_of(r) == Granularity::kGroup;
}

// The largest default group that divides every linear whose group is open.
std::optional<int> default_group(const std::vector<Chosen>& chosen) {
  for (const int group : kDefaultGroups)
    if (std::all_of(chosen.begin(), chosen.end(), [&](const Chosen& c) {
          return !group_is_open(c.request) || c.linear->in_features % group == 0;
        }))
      return group;
  return std::nullopt;
}

// The sizes that divide every linear for which a group was asked for.
std::string groups_that_would(const std::vector<Chosen>& chosen) {
  std::string text;
  for (const int group : {256, 128, 64, 32, 16, 8}) {
    const bool fits = std::all_of(chosen.begin(), chosen.end(), [&](const Chosen& c) {
      return granularity_of(c.request) != Granularity::kGroup || c.linear->in_features % group == 0;
    });
    if (fits) text += (text.empty() ? "" : ", ") + std::to_string(group);
  }
  return text.empty() ? "no common group does: write _channel" : "groups of " + text + " divide every linear";
}

DType scale_dtype(const std::string& format, const Checkpoint& checkpoint, const LinearSpec& linear) {
  if (format != kCompressedTensorsFormat.name && format != kDenseFormat.name) return DType::kF16;
  const StoredTensor* weight = checkpoint.find(linear.module + ".weight");
  return weight != nullptr && weight->view.dtype == DType::kF16 ? DType::kF16 : DType::kBF16;
}

QuantScheme resolve_scheme(const Chosen& c, const std::vector<Chosen>& all, std::optional<int> open_group,
                           const std::string& source, bool symmetric) {
  const SchemeRequest& r = c.request;
  QuantScheme scheme;
  scheme.bits = r.bits;
  scheme.activation_bits = r.activation_bits;
  scheme.weight_type = r.weight_type;
  if (r.activation_bits != 16 && r.activation_bits != 8)
    fail(ErrorKind::kUnsupported,
         {fmt::format("{}-bit activations are not in this version", r.activation_bits), source, "scheme",
          fmt::format("write w{0}a16 or w{0}a8", r.bits)});
  scheme.granularity = granularity_of(r);
  scheme.symmetric = r.symmetric.value_or(symmetric || r.activation_bits == 8);
  if (r.activation_bits == 8)
    scheme.activation_scale = r.static_activations                        ? ActivationScale::kTensor
                              : scheme.granularity == Granularity::kBlock ? ActivationScale::kTokenGroup
                                                                          : ActivationScale::kToken;
  if (scheme.granularity != Granularity::kGroup) return scheme;
  if (group_is_open(r) && !open_group)
    fail(ErrorKind::kUsage,
         {fmt::format("none of 128, 64, 32 divides {} ({} input features) and every other linear",
                      c.linear->module, c.linear->in_features),
          source, "scheme", groups_that_would(all)});
  scheme.group_size = r.group_size ? *r.group_size : *open_group;
  if (scheme.group_size < 1 || c.linear->in_features % scheme.group_size != 0)
    fail(ErrorKind::kUsage, {fmt::format("group_size {} does not divide the {} input features of {}",
                                         scheme.group_size, c.linear->in_features, c.linear->module),
                             source, "scheme", groups_that_would(all)});
  return scheme;
}

// AWQ's searches and GPTQ choose among integer codes.
void check_float8(const Plan& plan, const std::string& source) {
  if (plan.fold != FoldMethod::kAwq && plan.rounding == RoundingMethod::kNearest) return;
  for (const PlannedModule& m : plan.modules)
    if (m.scheme.weight_type == WeightType::kFloat8)
      fail(ErrorKind::kUnsupported, {fmt::format("{} is {}, and method {} chooses integer codes", m.module,
                                                 m.scheme.text(), plan.method),
                                     source, "method", "write rtn or smoothquant"});
}

void resolve_calibration(const Recipe& recipe, const ModelSpec& spec, Plan& plan) {
  plan.calibration = recipe.calibration;
  plan.needs_calibration = plan.method != "rtn" ||
                           std::any_of(plan.modules.begin(), plan.modules.end(), [](const PlannedModule& m) {
                             return m.scheme.activation_scale == ActivationScale::kTensor;
                           });
  if (!plan.needs_calibration && !plan.target_bits) return;
  plan.chunk_tokens = calibration_chunk(recipe, spec);
}

}  // namespace

bool takes_back_upstream(const Plan& plan) {
  return plan.rounding == RoundingMethod::kGptq && plan.gptq.upstream_share.value_or(0) > 0;
}

void check_salient(const Recipe& recipe) {
  if (recipe.awq.salient_fp16 == 0) return;
  if (recipe.format != kDenseFormat.name)
    fail(
        ErrorKind::kUnsupported,
        {fmt::format("format {} has no place for columns that stay at 16 bits", recipe.format), recipe.source,
         "awq.salient_fp16", fmt::format("write format: {}, which stores dense weights", kDenseFormat.name)});
  if (recipe.methods != std::vector<std::string>{"awq"})
    fail(ErrorKind::kUsage,
         {"keeping salient columns is a baseline to compare method awq with, not a part of another method",
          recipe.source, "awq.salient_fp16", "write method: awq"});
}

std::int64_t calibration_chunk(const Recipe& recipe, const ModelSpec& spec) {
  const std::int64_t length = recipe.calibration.sequence_length;
  if (length > spec.max_position)
    fail(ErrorKind::kUsage,
         {fmt::format("samples of {} tokens exceed the model's {} positions", length, spec.max_position),
          recipe.source, "calibration.sequence_length", fmt::format("write at most {}", spec.max_position)});
  return chunk_of(length);
}

Plan make_plan(const Recipe& recipe, const Checkpoint& checkpoint, const ModelSpec& spec, Compute compute,
               int threads, std::uint64_t memory_limit, PlannedDevices devices) {
  Plan plan;
  plan.devices = std::move(devices.names);
  plan.device_room = devices.room;
  resolve_method(recipe, plan);
  plan.format = recipe.format;
  plan.compute = compute;
  plan.awq = recipe.awq;
  plan.gptq = recipe.gptq;
  if (!plan.gptq.descent_sweeps) plan.gptq.descent_sweeps = plan.fold == FoldMethod::kAwq ? 2 : 1;
  if (!plan.gptq.upstream_share) plan.gptq.upstream_share = plan.fold == FoldMethod::kAwq ? 0.5 : 0.0;
  plan.smoothquant = recipe.smoothquant;
  plan.activations = recipe.activations;
  plan.target_bits = recipe.target_bits;
  plan.measured_samples = recipe.mixed.samples;
  check_intent(recipe, checkpoint, spec);
  const std::vector<Chosen> chosen = choose_linears(recipe, spec, plan);
  if (chosen.empty())
    fail(ErrorKind::kUsage,
         {"every linear is ignored: nothing is left to quantize", recipe.source, "ignore", {}});
  const std::optional<int> open_group = default_group(chosen);
  for (const Chosen& c : chosen) {
    // GPTQ and SmoothQuant are symmetric where nothing is said, what AWQ folds is not.
    QuantScheme scheme =
        resolve_scheme(c, chosen, open_group, recipe.source,
                       plan.fold != FoldMethod::kAwq && plan.rounding == RoundingMethod::kGptq);
    scheme.scale_dtype = scale_dtype(plan.format, checkpoint, *c.linear);
    if (plan.format == "gptq" && !scheme.symmetric)
      fail(ErrorKind::kUnsupported,
           {"asymmetric codes may have a zero of 0, which format gptq (v1) cannot store", recipe.source,
            c.linear->module, "write format: gptq_v2, or a symmetric scheme"});
    const bool column_groups = plan.rounding == RoundingMethod::kGptq &&
                               plan.gptq.order == RoundingOrder::kAct &&
                               scheme.group_of(c.linear->in_features) < c.linear->in_features;
    plan.modules.push_back(
        {c.linear->module, scheme, c.linear->out_features, c.linear->in_features, column_groups});
  }
  check_float8(plan, recipe.source);
  check_expressible(plan.format, plan.modules);
  if (plan.format == "compressed-tensors" && plan.modules.front().column_groups)
    plan.warnings.push_back(
        "gptq.order act stores a group per column, which compressed-tensors 0.19 and later do not read: "
        "order: gar and format: gptq are read");
  plan.kv_cache = recipe.kv_cache;
  if (plan.kv_cache && plan.format != "compressed-tensors")
    fail(ErrorKind::kUnsupported, {"format " + plan.format + " has no place for the scales of a KV cache",
                                   recipe.source, "kv_cache", "write format: compressed-tensors"});
  resolve_calibration(recipe, spec, plan);
  if (plan.kv_cache && !plan.needs_calibration)
    fail(ErrorKind::kUnsupported,
         {"the scales of a KV cache are found by calibration, which method rtn has none of", recipe.source,
          "kv_cache", "name another method, or leave kv_cache out"});
  if (plan.target_bits) plan.candidate_bits = resolve_candidates(recipe, plan, checkpoint);
  for (const std::string& note : recipe.notes) plan.warnings.push_back(note);
  settle_costs(plan, recipe.source, checkpoint, spec, threads, memory_limit);
  return plan;
}

PlannedDevices planned_devices(std::span<const std::shared_ptr<Backend>> devices) {
  PlannedDevices planned;
  for (const std::shared_ptr<Backend>& device : devices) {
    if (devices.size() > 1) planned.names.push_back(device->name());
    const auto* const own = dynamic_cast<const OwnMemory*>(device.get());
    if (own == nullptr) continue;
    if (!planned.room) planned.room = {own->free_bytes(), own->scratch_bytes()};
    planned.room->free_bytes = std::min(planned.room->free_bytes, own->free_bytes());
  }
  return planned;
}

namespace {

Json items_json(const std::vector<MemoryItem>& memory) {
  Json items = Json::array();
  for (const MemoryItem& item : memory)
    items.push_back(Json::object({{"what", Json(item.what)}, {"bytes", Json(item.bytes)}}));
  return items;
}

bool fits_on_device(const Plan& plan) {
  return !plan.device_room || fits_in_memory(plan.device_bytes, plan.device_room->free_bytes);
}

// With what would do: fewer samples, shorter ones, or another device.
[[noreturn]] void refuse_device(const Plan& plan, const std::string& source, const Checkpoint& checkpoint,
                                const ModelSpec& spec, int threads) {
  const std::string found =
      fmt::format("the run needs {} on its device, which has {} to give",
                  bytes_text(memory_needed(plan.device_bytes)), bytes_text(plan.device_room->free_bytes));
  const MemoryItem most =
      *std::max_element(plan.device_memory.begin(), plan.device_memory.end(),
                        [](const MemoryItem& a, const MemoryItem& b) { return a.bytes < b.bytes; });
  const auto try_less = [&](const char* key, const auto& value_of) {
    Plan tried = plan;
    while (value_of(tried) > 1) {
      value_of(tried) /= 2;
      tried.chunk_tokens = chunk_of(tried.calibration.sequence_length);
      estimate_costs(tried, checkpoint, spec, threads);
      if (fits_on_device(tried))
        fail(ErrorKind::kUsage,
             {found, source, key, fmt::format("{}: {} would do, or --device cpu", key, value_of(tried))});
    }
  };
  try_less("calibration.samples", [](Plan& tried) -> std::int64_t& { return tried.calibration.samples; });
  try_less("calibration.sequence_length",
           [](Plan& tried) -> std::int64_t& { return tried.calibration.sequence_length; });
  fail(ErrorKind::kUsage, {found, source, "--device",
                           fmt::format("no number of samples would do, most of it is for {}; use --device "
                                       "cpu, or a device with more memory",
                                       most.what)});
}

}  // namespace

void settle_costs(Plan& plan, const std::string& source, const Checkpoint& checkpoint, const ModelSpec& spec,
                  int threads, std::uint64_t memory_limit) {
  estimate_costs(plan, checkpoint, spec, threads);
  if (!(fits_in_limit(plan.peak_bytes, memory_limit) && fits_on_device(plan)) && plan.needs_calibration) {
    plan.keep_inputs = false;  // the same bytes, for one more run of each block up to them
    estimate_costs(plan, checkpoint, spec, threads);
  }
  if (!fits_on_device(plan)) {
    plan.activations_on_host = true;
    estimate_costs(plan, checkpoint, spec, threads);
  }
  const bool held = !plan.device_room || plan.activations_on_host;  // by the host
  if (!fits_in_limit(plan.peak_bytes, memory_limit) && plan.needs_calibration && held) {
    plan.activations_in_file = true;
    estimate_costs(plan, checkpoint, spec, threads);
  }
  check_memory_limit(plan.peak_bytes, memory_limit, source);
  if (!fits_on_device(plan)) refuse_device(plan, source, checkpoint, spec, threads);
}

std::int64_t Plan::gram_tokens() const {
  const bool for_the_report_alone = fold == FoldMethod::kSmoothQuant && smoothquant.alpha.has_value() &&
                                    rounding == RoundingMethod::kNearest;
  return for_the_report_alone ? kGramChunkRows : kAllTokens;
}

double Plan::bits_per_weight() const { return stored_bits_per_weight(format, modules); }

Json Plan::to_json() const {
  Json planned = Json::array(), left = Json::array(), notes = Json::array(), named = Json::array();
  for (const PlannedModule& m : modules)
    planned.push_back(Json::object({{"module", Json(m.module)},
                                    {"scheme", Json(m.scheme.text())},
                                    {"shape", Json::array({Json(m.out_features), Json(m.in_features)})}}));
  for (const std::string& name : ignored) left.push_back(Json(name));
  for (const std::string& warning : warnings) notes.push_back(Json(warning));
  for (const std::string& device : devices) named.push_back(Json(device));
  return Json::object({{"schema", Json("llmq.plan/1")},
                       {"method", Json(method)},
                       {"format", Json(format)},
                       {"compute", Json(compute == Compute::kFloat32 ? "float32" : "bfloat16")},
                       {"bits_per_weight", Json(bits_per_weight())},
                       {"bytes_in", Json(bytes_in)},
                       {"bytes_out", Json(bytes_out)},
                       {"bytes_written", Json(bytes_written())},
                       {"bytes_read", Json(total_bytes(reads))},
                       {"reads", reads_json(reads)},
                       {"flops", Json(flops)},
                       {"chunk_tokens", Json(chunk_tokens)},
                       {"keep_inputs", Json(keep_inputs)},
                       {"activations_in_file", Json(activations_in_file)},
                       {"activations_on_host", Json(activations_on_host)},
                       {"peak_bytes", Json(peak_bytes)},
                       {"devices", named},
                       {"device_bytes", Json(device_bytes)},
                       {"device_free_bytes", device_room ? Json(device_room->free_bytes) : Json()},
                       {"device_memory", items_json(device_memory)},
                       {"memory", items_json(memory)},
                       {"modules", planned},
                       {"ignored", left},
                       {"mixed", mixed ? mixed->to_json() : Json()},
                       {"warnings", notes}});
}

}  // namespace llmq
