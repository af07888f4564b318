// What the user asked for: strict YAML (llmq's own form or an llm-compressor recipe as it is), then flags and
// --set on top.
//
// Every error carries line and column. Four steps stay apart: defaults, file, edits, validation (the plan
// resolves names and shapes).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/io.h"
#include "base/json.h"
#include "calibration/calibration_text.h"
#include "quant/methods/method_options.h"
#include "tensor/kv_cache_type.h"
#include "tensor/quant_scheme.h"

namespace llmq {

// The largest magnitude that a calibrated scale of activations covers: that of all values seen, or the one
// that `percentile` percent of the sampled values do not exceed; what lies above is clipped.
struct ActivationRange {
  bool whole = true;
  double percentile = 99.99;
  bool operator==(const ActivationRange&) const = default;
};

inline constexpr const char* kDenseWord = "dense";  // in place of a scheme: linears stay as they are

struct SchemeOverride {
  std::string match;
  std::optional<SchemeRequest> scheme;  // none: the linears stay as they are
  // Where the word is one of GGUF's types; of them bf16 (dense elsewhere) and mxfp4 are known to others, too.
  std::optional<DType> gguf_type = {};
};

struct MixedRequest {
  std::vector<int> bits;  // rising; 16: left as it is; empty: those of 4, 8 and 16 that the format can mix
  std::vector<std::optional<SchemeRequest>> schemes;  // in place of bits and of a scheme; none: left as it is
  std::int64_t samples = 16;                          // of the calibration, for the measuring pass
};

struct EvaluateRequest {
  std::string text = "builtin:wikitext-2";
  std::optional<double> max_ppl, max_delta_ppl, max_kl;
  std::int64_t max_windows = 0;
};

// format: gguf. Empty fields are chosen by the method: rtn has no importance and ggml's search, imatrix has
// that of the calibration text and the wider search.
struct GgufOptions {
  std::string type = "q4_k_m";  // the scheme
  std::string importance;       // "none", "calibration", or an importance matrix
  std::string search;           // "ggml" or "best"
  std::string imatrix_out;      // where the importance of the calibration text is written
  bool operator==(const GgufOptions&) const = default;
};

// What a model card says that no run finds out. Empty: taken from the model where its files are sure.
struct CardRequest {
  std::string base_model;                            // hub name
  std::string license;                               // as the hub lists licences: "apache-2.0"
  std::string quantized_by;                          // person or organization
  std::optional<std::vector<std::string>> datasets;  // hub names of the calibration text
};

// The keys awq.*, gptq.* and smoothquant.* are the options of its methods.
struct Recipe : MethodOptions {
  std::string source;  // file, or "command line"
  std::string model, output;
  std::string adapter;                      // directory of one that is folded into the model; empty: none
  bool versioned = false;                   // output: {dir, versioned, keep}
  std::int64_t keep = 0;                    // versions kept; 0: all
  std::optional<std::int64_t> shard_bytes;  // of tensors in a shard at most; none: 5 GB
  // In the order in which they are applied: words of quant/methods/registry.h.
  std::vector<std::string> methods;
  std::optional<SchemeRequest> scheme;
  bool scheme_is_gguf = false;  // the scheme that was named is gguf.type
  std::string format = "compressed-tensors";
  CalibrationRequest calibration;
  bool rotates_values = false;          // rotate: {value: hadamard} (quant/rotation/value_rotation.h)
  std::optional<KvCacheType> kv_cache;  // kv_cache: {dtype}: scales of keys and values, calibrated
  std::vector<std::string>
      targets;  // llm-compressor's `targets`: names or re:patterns; empty: every linear of the blocks
  std::vector<std::string> ignore = {"lm_head"};
  std::vector<SchemeOverride> overrides;
  std::optional<SchemeRequest> vision;  // of a tower beside the decoder; none: it stays as it is
  std::optional<double> target_bits;    // bits per weight that mixed precision may spend
  MixedRequest mixed;
  GgufOptions gguf;
  ActivationRange activations;
  bool portable = false;  // the same bytes on every processor with AVX2 (kPortableArithmetic)
  std::optional<EvaluateRequest> evaluate;
  CardRequest card;                // base_model, license, datasets, quantized_by
  std::vector<std::string> notes;  // what llm-compressor keys ask for and is not done, said in the report

  static Recipe parse(std::string_view text, const std::string& file);
  static Recipe load(Io& io, const Path& path);
  // "key=value" with dotted keys ("calibration.samples=64"); the value is YAML. Error(kUsage) for an unknown
  // key, listing those that exist.
  void set(const std::string& assignment);
  Json to_json() const;  // for the report: whole, in a fixed order
  // What to_json() made, of a manifest that may come from anybody: as strict as a recipe file.
  static Recipe from_json(const Json& json, const std::string& file);
};

}  // namespace llmq
