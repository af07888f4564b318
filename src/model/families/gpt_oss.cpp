// gpt-oss: Llama with biases of attention, a sink of each head, a window in every other block, and a mixture
// of experts in all of them: a router with a bias, whose top_k greatest answers alone go through softmax
// (which is softmax over all, divided by the sum of the chosen), and experts with biases and a clamped
// SwiGLU. Source: Transformers' configuration_gpt_oss and modeling_gpt_oss.
//
// A checkpoint stacks its experts transposed, with columns of gate and up in turn. The published ones hold
// them as MXFP4, `*_blocks` and `*_scales`, with rows of gate and up in turn, which are read as the numbers
// that they stand for.
#include "model/gguf/gguf_fields.h"
#include "model/structures/llama_like.h"
#include "model/structures/llama_like_gguf.h"

namespace llmq {
namespace {

// The rope and the window that the class has where a config says nothing are no plain ones.
void require_stated(ConfigFields& config) {
  if (config.find("rope_scaling") == nullptr && config.find("rope_parameters") == nullptr)
    config.bad("rope_scaling", "is missing", "this family's rope is stretched; say how");
  if (config.find("sliding_window") == nullptr) config.bad("sliding_window", "is missing");
}

void require_gpt_oss(ConfigFields& config) {
  config.require_neutral("swiglu_limit", kSwigluLimit);
  config.require_neutral("swiglu_alpha", 1.702);
  config.require_neutral("hidden_act", "silu");
  require_stated(config);
  // Of the first release, which say again what other keys do.
  for (const char* key : {"experts_per_token", "initial_context_length"}) config.find(key);
}

LlamaMixture read_gpt_oss_mixture(ConfigFields& config, std::int64_t tensors, const LlamaSizes& sizes,
                                  const ModelSpec& spec) {
  LlamaMixture mixture;
  mixture.names.router = "mlp.router";
  mixture.blocks.assign(spec.blocks.size(), true);
  read_experts(config, tensors, 128, 4, mixture);
  mixture.width = sizes.intermediate_size;
  mixture.normalized = true, mixture.biases = true;
  mixture.activation = Activation::kClampedSwiglu;
  return mixture;
}

void read_gpt_oss(ConfigFields& config, std::int64_t tensors, ModelSpec& spec) {
  require_gpt_oss(config);
  const LlamaSizes sizes = read_llama_sizes(config, tensors, {131072, 8, 64, 1e-5}, spec);
  spec.ropes = {read_rope(config, spec.max_position, sizes.head_dim, {.theta = 150000})};
  LlamaTraits traits;
  traits.qkv_bias = traits.o_bias = config.flag("attention_bias", true);
  traits.sinks = true;
  traits.windows = read_periodic_windows(config, spec, 2);
  traits.mixture = read_gpt_oss_mixture(config, tensors, sizes, spec);
  fill_llama(sizes, traits, spec);
  spec.only_format = "mxfp4";
  spec.unwritten =
      "vLLM and Transformers read gpt-oss's experts as they were published, stacked in BF16 or MXFP4: they "
      "pass over tensors of single experts without a word";
}

std::optional<SlabNames> find_gpt_oss_experts(const Json&, const std::string& tensor) {
  struct Stack {
    const char* ending;
    SlabNames names;
    const char* exponents = nullptr;
  };
  static const Stack kStacks[] = {
      {"gate_up_proj", {{}, ".gate_proj.weight", true, {".up_proj.weight"}, true}},
      {"gate_up_proj_blocks",
       {{}, ".gate_proj.weight", false, {".up_proj.weight"}, true},
       "gate_up_proj_scales"},
      {"gate_up_proj_bias", {{}, ".gate_proj.bias", false, {".up_proj.bias"}, true, true}},
      {"down_proj", {{}, ".down_proj.weight", true}},
      {"down_proj_blocks", {{}, ".down_proj.weight"}, "down_proj_scales"},
      {"down_proj_bias", {{}, ".down_proj.bias", false, {}, false, true}}};
  for (const Stack& stack : kStacks) {
    const std::string whole = std::string(".mlp.experts.") + stack.ending;
    if (!tensor.ends_with(whole)) continue;
    SlabNames found = stack.names;
    found.before = tensor.substr(0, tensor.size() - whole.size()) + ".mlp.experts.";
    const std::string codes = "_blocks";
    found.whole = tensor.ends_with(codes) ? tensor.substr(0, tensor.size() - codes.size()) : tensor;
    if (stack.exponents != nullptr) found.exponents = found.before + stack.exponents;
    return found;
  }
  return std::nullopt;
}

constexpr auto kGptOssBlockNames =
    joined(kAttentionNames, std::array<GgufName, 6>{{{"attn_sinks.weight", "self_attn.sinks", {}, true},
                                                     {"post_attention_norm", "post_attention_layernorm"},
                                                     {"ffn_gate_inp", "mlp.router"},
                                                     {"ffn_gate_exps", "mlp.experts.*.gate_proj"},
                                                     {"ffn_up_exps", "mlp.experts.*.up_proj"},
                                                     {"ffn_down_exps", "mlp.experts.*.down_proj"}}});
constexpr GgufNames kGptOssNames{"model.layers", kLlamaModelNames, kGptOssBlockNames};

constexpr std::array<GgufKey, 15> kGptOssKeys{
    GgufKey::kBlockCount,  GgufKey::kContextLength, GgufKey::kEmbeddingLength, GgufKey::kFeedForwardLength,
    GgufKey::kHeadCount,   GgufKey::kKvHeadCount,   GgufKey::kRopeScaling,     GgufKey::kFrequencyBase,
    GgufKey::kNormEpsilon, GgufKey::kExpertCount,   GgufKey::kExpertUsedCount, GgufKey::kKeyLength,
    GgufKey::kFileType,    GgufKey::kWindow,        GgufKey::kExpertWidth};

void add_gpt_oss_gguf(const GgufHeader& header, Json& config) {
  add_gguf_experts(header, "num_local_experts", config);
  config["intermediate_size"] = gguf_size(header, "gpt-oss.expert_feed_forward_length");
  config["sliding_window"] = gguf_window(header);
  config["attention_bias"] = has_gguf_biases(header, {"attn_q", "attn_k", "attn_v", "attn_output"});
}

constexpr GgufFamily kGptOssGguf = {.architecture = "gpt-oss",
                                    .names = kGptOssNames,
                                    .keys = kGptOssKeys,
                                    .output_biases = true,
                                    .window = GgufWindow::kAlways,
                                    .full_attention_every = 2,
                                    .activation = Activation::kClampedSwiglu,
                                    .fine_ramp = true,
                                    .experts = GgufExperts::kSumToOne,
                                    .add_config = add_gpt_oss_gguf};

}  // namespace

extern const Family kGptOssFamily = {"gpt_oss",    "GptOssForCausalLM", false,
                                     read_gpt_oss, &kGptOssGguf,        find_gpt_oss_experts};

}  // namespace llmq
