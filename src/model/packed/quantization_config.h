// quantization_config of a checkpoint, parsed strictly in everything that changes what the stored words mean.
//
//   compressed-tensors   formats pack-quantized, int-quantized, float-quantized, nvfp4-pack-quantized,
//                        mxfp4-pack-quantized, mxfp8-quantized; config_groups of integer or float weight
//                        schemes with rounded inputs or without, each with targets; ignore. A target is a
//                        module's full name, "re:" and a regular expression from its start, or the class
//                        Linear, in this order of precedence.
//   awq                  version gemm, 4 bits, one scheme for all.
//   gptq                 checkpoint_format gptq or gptq_v2, 2, 3, 4 and 8 bits; `dynamic`: regular
//                        expressions from the start of a module's name, the first that matches changes the
//                        scheme ("+:") or leaves the module dense ("-:").
//   auto-round           packing_format auto_round:auto_gptq (as gptq, but 2 to 8 bits), auto_round:auto_awq
//                        (as awq) or auto_round:gptqmodel (as gptq_v2); `extra_config`: modules with
//                        another scheme.
//   modelopt             quant_algo FP8, FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO, NVFP4 and W4A16_NVFP4, or
//                        MIXED_PRECISION with `quantized_layers`; in its words of config.json or of the
//                        older hf_quant_config.json (io/codes/modelopt_names.cpp)
//   bitsandbytes, fp8,   tensors that are numbers from opening on (io/bitsandbytes.cpp,
//   fbgemm_fp8           io/float8_blocks.cpp).
//   mxfp4                of gpt-oss: tensors that say it by their names; nothing is asked for here.
// Anything else (other formats, other quantization of activations, transforms) is refused by name.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/pattern.h"
#include "model/linear_source.h"
#include "tensor/kv_cache_type.h"
#include "tensor/quant_scheme.h"

namespace llmq {

// What a config.json of compressed-tensors tells of transforms (`transform_config`); null: of none.
const Json* told_transforms(const Json& config);

// Of a module whose inputs stay as they are: whether a scale for them may stand beside its weight.
enum class InputScale : std::uint8_t { kNone, kPerhaps };

struct QuantizationTarget {
  std::string text;                    // as written
  std::optional<NamePattern> pattern;  // of a regular expression
  std::optional<QuantScheme> scheme;   // scale_dtype is open: the stored scales say it; none: left dense
  InputScale input_scale = InputScale::kNone;
};

class QuantizationConfig {
 public:
  // `config` is the whole of config.json. No quantization_config: format() is kNone.
  static QuantizationConfig read(const Json& config, const std::string& file);

  PackedFormat format() const { return format_; }
  // gptq: whether GPTQModel wrote it, whose zeros of 0 survive v1.
  bool by_gptqmodel() const { return by_gptqmodel_; }
  // What the checkpoint asks a server's KV cache to be; its weights mean the same.
  std::optional<KvCacheType> kv_cache() const { return kv_cache_; }
  // The scheme of a linear's module, or nothing where it is ignored or no target names it.
  std::optional<QuantScheme> scheme_of(const std::string& module) const;
  InputScale input_scale_of(const std::string& module) const;

 private:
  const QuantizationTarget* target_of(const std::string& module) const;
  PackedFormat format_ = PackedFormat::kNone;
  bool by_gptqmodel_ = false;
  std::optional<KvCacheType> kv_cache_;
  std::vector<QuantizationTarget> targets_;  // the first that names a module has the say
};

}  // namespace llmq
