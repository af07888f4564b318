#include "quant/plan/capacity_estimate.h"

#include <algorithm>
#include <array>

#include "base/amount_text.h"
#include "base/checked.h"
#include "base/error.h"
#include "export/formats/output_format.h"
#include "export/formats/packed_formats.h"
#include "export/gguf/type_mix.h"
#include "export/output/packed_writer.h"
#include "model/linear_source.h"
#include "model/open_checkpoint.h"
#include "model/packed/unpacked.h"
#include "quant/plan/gguf_plan.h"
#include "quant/plan/plan.h"
#include "quant/plan/recommended_scheme.h"

namespace llmq {
namespace {

// Positions that are kept of a sequence; a window of 0 keeps all.
std::int64_t in_window(std::int64_t window, std::int64_t context) {
  return window > 0 ? std::min(context, window) : context;
}

constexpr std::int64_t kMaxBatch = 65536;
constexpr int kCallsPerBlock = 16, kCallsBeside = 3;  // model/run_sublayer.cpp; embedding, last norm, head

// What a scheme means for a step of the model.
struct StepCosts {
  std::uint64_t weight_bytes = 0;  // that pass once per step
  double flops_per_second = 0;
};

struct Sizes {
  const ModelSpec& spec;
  double linear_weights = 0, head_weights = 0;
  // Of what is looked up and not multiplied: where the head is another tensor, and that of blocks.
  std::uint64_t embedding_bytes = 0;

  Sizes(const Checkpoint& checkpoint, const ModelSpec& model) : spec(model) {
    for (const BlockSpec& block : model.blocks)
      for (const LinearSpec& linear : block.linears)
        linear_weights += static_cast<double>(linear.out_features) * static_cast<double>(linear.in_features);
    head_weights = static_cast<double>(model.vocab_size) * static_cast<double>(model.hidden_size);
    if (!model.tied_head) embedding_bytes = checkpoint.at(model.embedding.tensor).view.bytes();
    if (model.block_embedding) embedding_bytes += checkpoint.at(model.block_embedding->table).view.bytes();
  }
  // Of the weights of linears, what a step of so many rows reads at most.
  double weights_read(std::int64_t rows) const {
    double sum = 0;
    for (const BlockSpec& block : spec.blocks)
      for (const LinearSpec& linear : block.linears)
        sum += static_cast<double>(linear.out_features) * static_cast<double>(linear.in_features) *
               block.share_read(linear.id, rows);
    return sum;
  }
  double share_read(std::int64_t rows) const {
    return (weights_read(rows) + head_weights) / (linear_weights + head_weights);
  }
  // Positions that a row of each layer sees times the channels of its attention, `context` being before it.
  double attended(std::int64_t context) const {
    double sum = 0;
    for (const BlockSpec& block : spec.blocks)
      if (const auto attention = block.attention_sizes())
        sum += static_cast<double>(in_window(attention->window, context)) *
               static_cast<double>(attention->width());
    return sum;
  }
  double attention_width() const {
    double sum = 0;
    for (const BlockSpec& block : spec.blocks)
      if (const auto attention = block.attention_sizes()) sum += static_cast<double>(attention->width());
    return sum;
  }
};

std::uint64_t checked(std::optional<std::uint64_t> bytes) {
  if (!bytes)
    fail(ErrorKind::kUsage, {"is more than can be counted", {}, "--batch, --context", "ask for less"});
  return *bytes;
}

// Scales are FP16; those of FP8 belong to a layer, and weigh nothing.
const std::array<KvLayout, 7> kKvLayouts = {
    {{"f32", {DType::kF32}, "4 bytes an element"},
     {"bf16", {DType::kBF16}, "2 bytes an element"},
     {"fp16", {DType::kBF16, kKvFloat16}, "2 bytes an element"},
     {"int8", {DType::kBF16, kKvInt8}, "1 byte an element, an FP16 scale a position and head"},
     {"int4",
      {DType::kBF16, kKvInt4},
      "4 bits an element of values, 5 of keys, an FP16 scale a position and head"},
     {"fp8", {DType::kBF16, kKvFloat8}, "1 byte an element, a scale a layer"},
     {"fp8_e5m2", {DType::kBF16, kKvFloat8E5M2}, "1 byte an element"}}};

void choose_kv_cache(const EstimateRequest& request, const Checkpoint& checkpoint, Estimate& into) {
  const std::optional<KvCacheType> asked = LinearSource::open(checkpoint).kv_cache();
  into.kv_cache = kv_layout(!request.kv_cache.empty()        ? request.kv_cache
                            : !asked                         ? "bf16"
                            : *asked == KvCacheType::kFloat8 ? "fp8"
                                                             : "int8");
  into.kv_reason = !request.kv_cache.empty() ? "asked for"
                   : asked                   ? "the checkpoint asks for it"
                                             : "the default";
}

// What the layers keep, all together, of a sequence of `context`.
std::uint64_t kept_bytes(const ModelSpec& spec, const KvType& type, std::int64_t context) {
  std::uint64_t bytes = spec.state_bytes();
  for (const BlockSpec& block : spec.blocks) {
    const PagesSpec& pages = block.pages;
    bytes += static_cast<std::uint64_t>(in_window(pages.window, context)) *
             static_cast<std::uint64_t>(pages.kv_heads * type.bytes(pages.head_dim));
  }
  return bytes;
}

double roofline(double bytes, double flops, double flops_per_second, double calls,
                const MachineRates& machine) {
  return std::max(bytes / machine.bytes_per_second, flops / flops_per_second) + calls * machine.call_seconds;
}

double calls(const ModelSpec& spec) {
  return static_cast<double>(spec.blocks.size()) * kCallsPerBlock + kCallsBeside;
}

void estimate_decoding(EstimatedCell& cell, const Sizes& sizes, const StepCosts& costs,
                       const MachineRates& machine) {
  const double sequences = static_cast<double>(cell.batch);
  cell.step_operations = 2 * sequences * (sizes.weights_read(1) + sizes.head_weights) +
                         4 * sequences * sizes.attended(cell.context);
  cell.step_bytes = static_cast<double>(costs.weight_bytes) * sizes.share_read(cell.batch) +
                    static_cast<double>(cell.kv_bytes);
  cell.decode_tokens_per_second = sequences / roofline(cell.step_bytes, cell.step_operations,
                                                       costs.flops_per_second, calls(sizes.spec), machine);
}

// All tokens of one sequence; the head is asked for the last one only.
double prefill_rate(const Sizes& sizes, const StepCosts& costs, std::int64_t context,
                    const MachineRates& machine) {
  const double tokens = static_cast<double>(context);
  const double flops = 2 * tokens * sizes.weights_read(1) + 2 * sizes.head_weights +
                       2 * tokens * tokens * sizes.attention_width();
  return tokens / roofline(static_cast<double>(costs.weight_bytes) * sizes.share_read(context), flops,
                           costs.flops_per_second, calls(sizes.spec), machine);
}

// Bytes of a code as llmq's runtime holds it, with the scales and zeros of its groups. The processor's codes
// beside inputs of 16 bits take their bits, where their zero is the middle, else 4 or 8; a device's take 4 or
// 8, or a byte for float32, and scales and zeros are FP32. Floats of 4 bits have scales of a byte.
double code_bytes(const QuantScheme& scheme, const EstimateRequest& request, const MachineRates& machine) {
  const bool floats = scheme.weight_type == WeightType::kFloat4;
  const bool beside_bytes = scheme.rounds_inputs() && !floats;
  const bool takes_its_bits = !beside_bytes && !machine.on_device && scheme.symmetric && scheme.bits != 7;
  const int bits = machine.on_device && (beside_bytes || request.compute == Compute::kFloat32) ? 8
                   : takes_its_bits                                                            ? scheme.bits
                   : scheme.bits <= 4                                                          ? 4
                                                                                               : 8;
  if (scheme.granularity != Granularity::kGroup || (beside_bytes && bits == 8)) return bits / 8.0;
  const double scale = floats              ? 1
                       : machine.on_device ? 4
                                           : static_cast<double>(element_bytes(scheme.scale_dtype));
  const double zero = floats || scheme.symmetric ? 0 : machine.on_device ? 4 : 1;
  return bits / 8.0 + (scale + zero) / scheme.group_size;
}

// A runtime that computes from what is stored; on this machine llmq's own, which runs a GGUF's types and
// codes from what they take in the file, or near it, and E4M3, and floats in groups beside such inputs, as
// numbers of the compute type or of BF16. `unread` of what is stored a step leaves alone.
StepCosts step_costs(const Sizes& sizes, const SchemeEstimate& scheme, std::uint64_t unread,
                     const QuantScheme* packed, const EstimateRequest& request, const MachineRates& machine) {
  const bool in_groups = packed != nullptr && packed->rounds_inputs_in_float_groups();
  const bool low = packed != nullptr && packed->rounds_inputs() && !in_groups;
  const bool float8 = low && packed->weight_type == WeightType::kFloat8;
  StepCosts costs;
  costs.flops_per_second = machine.bfloat16_flops;
  if (!machine.measured || find_gguf_file_type(scheme.scheme) != nullptr) {
    costs.weight_bytes = scheme.weight_bytes - std::min(scheme.weight_bytes, unread);
    const double faster = float8 ? machine.float8_flops : low ? machine.int8_flops : 0;
    if (faster > 0) costs.flops_per_second = faster;
    return costs;
  }
  const double element = request.compute == Compute::kFloat32 ? 4 : 2;
  const bool in_codes =
      packed != nullptr && packed->weight_type != WeightType::kFloat8 && (!in_groups || machine.on_device);
  const double linear_element = in_codes ? code_bytes(*packed, request, machine) : in_groups ? 2 : element;
  costs.weight_bytes =
      static_cast<std::uint64_t>(sizes.linear_weights * linear_element + sizes.head_weights * element);
  return costs;
}

// Bytes of every tensor that `plan` would write.
std::uint64_t written_bytes(const Plan& plan, const Checkpoint& checkpoint) {
  std::uint64_t bytes = dense_bytes(checkpoint, plan.modules);
  for (const PlannedModule& module : plan.modules)
    bytes += declared_bytes(packed_format(plan.format).declare(module));
  return bytes;
}

Recipe plain_recipe(const std::string& scheme, bool gguf) {
  Recipe recipe;
  recipe.source = "llmq estimate";
  recipe.methods = {"rtn"};
  if (gguf) recipe.format = kGgufFormat;
  recipe.set("scheme=" + scheme);
  return recipe;
}

// What a GGUF has of a tensor that is looked up and not multiplied.
std::uint64_t embedding_bytes(const GgufPlan& plan, const ModelSpec& spec) {
  std::uint64_t bytes = 0;
  for (const GgufPlan::Tensor& tensor : plan.tensors)
    if ((!spec.tied_head && tensor.name == "token_embd.weight") ||
        tensor.name == "per_layer_token_embd.weight")
      bytes += tensor.bytes_out();
  return bytes;
}

// The scheme's sizes; `packed` becomes that of its first linear, where it is one of llmq's own, and `unread`
// what a step does not read of a GGUF.
SchemeEstimate sizes_of(Io& io, const std::string& name, const Checkpoint& checkpoint, const ModelSpec& spec,
                        const EstimateRequest& request, std::optional<QuantScheme>& packed,
                        std::uint64_t& unread) {
  SchemeEstimate result;
  result.scheme = name;
  result.format = "safetensors";
  if (name == kOriginalScheme) {
    std::vector<TensorDeclaration> stored;
    for (const StoredTensor& tensor : checkpoint.tensors())
      stored.push_back({tensor.name, written_dtype(tensor), tensor.view.shape});
    result.weight_bytes = declared_bytes(stored);
  } else {
    const bool gguf = find_gguf_file_type(name) != nullptr;
    const Recipe recipe = plain_recipe(name, gguf);  // a word that is no scheme is the user's mistake
    result.format = gguf ? kGgufFormat : recipe.format;
    try {
      if (gguf) {
        const GgufPlan plan = make_gguf_plan(io, recipe, checkpoint, spec, request.compute, 0);
        result.weight_bytes = plan.bytes_out();
        unread = embedding_bytes(plan, spec);
      } else {
        const Plan plan = make_plan(recipe, checkpoint, spec, request.compute, 1, 0);
        packed = plan.modules.front().scheme;
        result.scheme = packed->text();
        result.weight_bytes = written_bytes(plan, checkpoint);
      }
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kIo || error.kind() == ErrorKind::kInternal) throw;
      result.refusal = error.detail().message;
      return result;
    }
  }
  result.bits_per_weight = 8 * static_cast<double>(result.weight_bytes) /
                           static_cast<double>(spec.parameters() + spec.carried.parameters);
  return result;
}

std::vector<std::int64_t> usual_contexts(const ModelSpec& spec) {
  std::vector<std::int64_t> contexts;
  for (const std::int64_t context : {2048, 8192, 32768})
    if (context <= spec.max_position) contexts.push_back(context);
  if (contexts.empty()) contexts.push_back(spec.max_position);
  return contexts;
}

void check_request(const EstimateRequest& request, const ModelSpec& spec) {
  for (const std::int64_t context : request.contexts)
    if (context < 1 || context > spec.max_position)
      fail(ErrorKind::kUsage,
           {fmt::format("a context of {}, and the model has {} positions", context, spec.max_position),
            {},
            "--context",
            fmt::format("give 1 .. {}", spec.max_position)});
  for (const std::int64_t batch : request.batches)
    if (batch < 1 || batch > kMaxBatch)
      fail(ErrorKind::kUsage,
           {fmt::format("a batch of {}", batch), {}, "--batch", fmt::format("give 1 .. {}", kMaxBatch)});
}

}  // namespace

const KvLayout& kv_layout(const std::string& name) {
  std::string names;
  for (const KvLayout& layout : kKvLayouts) {
    if (name == layout.name) return layout;
    names += std::string(names.empty() ? "" : ", ") + layout.name;
  }
  fail(ErrorKind::kUsage,
       {"no KV cache is of type '" + name + "'", {}, "--kv-cache-dtype", "types: " + names});
}

const KvLayout& kv_layout(const KvType& type) {
  return *std::find_if(kKvLayouts.begin(), kKvLayouts.end(),
                       [&](const KvLayout& layout) { return layout.type == type; });
}

bool SchemeEstimate::fits() const {
  return refusal.empty() &&
         std::all_of(cells.begin(), cells.end(), [](const EstimatedCell& c) { return c.fits; });
}

Estimate estimate(Io& io, const std::string& model, const EstimateRequest& request,
                  const MachineRates& machine) {
  const Checkpoint checkpoint = open_checkpoint(io, model);
  const ModelSpec spec = ModelSpec::read(checkpoint);
  check_request(request, spec);
  const Sizes sizes(checkpoint, spec);
  const std::vector<std::int64_t> contexts =
      request.contexts.empty() ? usual_contexts(spec) : request.contexts;
  const std::vector<std::int64_t> batches =
      request.batches.empty() ? std::vector<std::int64_t>{1, 8, 32} : request.batches;
  std::vector<std::string> names = request.schemes;
  if (names.empty())
    names = {kOriginalScheme, "w8a8",   "fp8",    "w8a16",  "w4a16", "q8_0",
             "q6_k",          "q5_k_m", "q4_k_m", "q3_k_m", "q2_k"};
  Estimate result;
  result.model = model;
  result.machine = machine;
  result.budget = request.budget != 0 ? request.budget : machine.memory_bytes;
  choose_kv_cache(request, checkpoint, result);
  result.kv_bytes_per_token = spec.kv_bytes(result.kv_cache.type);
  result.carried_bytes = spec.carried.bytes;
  const Checkpoint numbers = unpacked(checkpoint);  // as quantize reads it
  std::vector<std::optional<QuantScheme>> packed(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    const Checkpoint& as_read = names[i] == kOriginalScheme ? checkpoint : numbers;
    std::uint64_t unread = sizes.embedding_bytes + spec.carried.bytes;
    SchemeEstimate scheme = sizes_of(io, names[i], as_read, spec, request, packed[i], unread);
    if (scheme.refusal.empty()) {
      const StepCosts costs =
          step_costs(sizes, scheme, unread, packed[i] ? &*packed[i] : nullptr, request, machine);
      for (const std::int64_t batch : batches)
        for (const std::int64_t context : contexts) {
          EstimatedCell cell;
          cell.batch = batch, cell.context = context;
          cell.kv_bytes = checked(checked_mul(kept_bytes(spec, result.kv_cache.type, context),
                                              static_cast<std::uint64_t>(batch)));
          // llmq's own runtime leaves in the file what other engines load.
          const std::uint64_t left =
              machine.measured ? std::min(result.carried_bytes, scheme.weight_bytes) : 0;
          cell.bytes = checked(checked_add(cell.kv_bytes, scheme.weight_bytes - left));
          cell.fits = cell.bytes <= result.budget;
          estimate_decoding(cell, sizes, costs, machine);
          scheme.cells.push_back(cell);
        }
      scheme.prefill_tokens_per_second =
          prefill_rate(sizes, costs, *std::min_element(contexts.begin(), contexts.end()), machine);
    }
    result.schemes.push_back(std::move(scheme));
  }
  recommend_scheme(result, packed);
  return result;
}

Json Estimate::to_json() const {
  Json list = Json::array();
  for (const SchemeEstimate& scheme : schemes) {
    Json cells = Json::array();
    for (const EstimatedCell& cell : scheme.cells)
      cells.push_back(Json::object({{"batch", cell.batch},
                                    {"context", cell.context},
                                    {"kv_bytes", Json(cell.kv_bytes)},
                                    {"bytes", Json(cell.bytes)},
                                    {"fits", cell.fits},
                                    {"decode_tokens_per_second", cell.decode_tokens_per_second}}));
    list.push_back(Json::object({{"scheme", scheme.scheme},
                                 {"format", scheme.format},
                                 {"refusal", scheme.refusal.empty() ? Json() : Json(scheme.refusal)},
                                 {"weight_bytes", Json(scheme.weight_bytes)},
                                 {"bits_per_weight_total", scheme.bits_per_weight},
                                 {"prefill_tokens_per_second", scheme.prefill_tokens_per_second},
                                 {"fits", scheme.fits()},
                                 {"cells", cells}}));
  }
  const auto rate = [](double value) { return value > 0 ? Json(value) : Json(); };
  return Json::object(
      {{"schema", "llmq.estimate/1"},
       {"model", model},
       {"machine", Json::object({{"name", machine.name},
                                 {"source", machine.source},
                                 {"memory_bytes", Json(machine.memory_bytes)},
                                 {"bytes_per_second", machine.bytes_per_second},
                                 {"bfloat16_flops", machine.bfloat16_flops},
                                 {"int8_flops", rate(machine.int8_flops)},
                                 {"float8_flops", rate(machine.float8_flops)},
                                 {"call_seconds", rate(machine.call_seconds)}})},
       {"budget", Json(budget)},
       {"kv_bytes_per_token", Json(kv_bytes_per_token)},
       {"carried_bytes", Json(carried_bytes)},
       {"kv_cache",
        Json::object({{"dtype", kv_cache.name}, {"layout", kv_cache.words}, {"reason", kv_reason}})},
       {"schemes", list},
       {"recommended", recommended.empty() ? Json() : Json(recommended)},
       {"reason", reason}});
}

}  // namespace llmq
