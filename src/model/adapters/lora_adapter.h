// A LoRA adapter as PEFT saves it: adapter_config.json and adapter_model.safetensors in one directory.
//
//   y = W x + scale B (A x),   scale = alpha / r, or alpha / sqrt(r) with use_rslora;   A [r, in], B [out, r]
//
// Opening checks every field, name, shape and value against the model: what an adapter may contain and this
// does not carry out (DoRA, whole modules, biases, initialisations that change the base model, matrices of
// the embedding or the head) is refused by its name, because an adapter that is carried out in part is
// another model. fan_in_fan_out is of layers that these models do not have; PEFT drops it, too. Cost: one
// pass over the adapter's values; they are read again when they are asked for, and leave the resident set.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "base/io.h"
#include "base/threads.h"
#include "io/checkpoint.h"
#include "model/model_spec.h"

namespace llmq {

// What an adapter adds to one linear.
struct LoraPair {
  std::int64_t rank = 0, out_features = 0, in_features = 0;
  float scale = 0;
  std::vector<float> down;  // A, [rank, in_features]
  std::vector<float> up;    // B, [out_features, rank]
};

// rows[i] += scale (B A)[first + i] for the `rows.size() / in_features` rows from `first` on: FP32, the sum
// over the rank in order, then the scale, then one addition.
void add_lora_rows(const LoraPair& pair, std::int64_t first, std::span<float> rows, ThreadPool& pool);

class LoraAdapter {
 public:
  // Errors: kBadInput, kUnsupported, naming the file and the field or tensor.
  static LoraAdapter open(Io& io, const Path& directory, const ModelSpec& spec);

  bool changes(std::size_t block, LinearId linear) const {
    return places_.at(block)[static_cast<std::size_t>(linear)].has_value();
  }
  LoraPair pair(std::size_t block, LinearId linear) const;  // only where changes()
  std::size_t blocks() const { return places_.size(); }     // of the model
  std::size_t linears() const;                              // that it changes
  std::int64_t rank() const;                                // the largest
  std::int64_t values() const;                              // of all matrices
  std::uint64_t bytes_of_opening() const;                   // what open() counted of the files
  struct PairBytes {
    std::uint64_t read = 0;  // what pair() counts, of matrices that are not kept since open()
    std::uint64_t kept = 0;  // of those that are, which direct reads hold in memory
  };
  PairBytes bytes_of_pair(std::size_t block, LinearId linear) const;
  const Path& directory() const { return directory_; }
  // that open() reads; Error(kBadInput) where one is missing
  static std::vector<Path> files(Io& io, const Path& directory);

 private:
  struct Place {
    std::string module;
    std::int64_t rank = 0;
    float scale = 0;
  };
  Path directory_;
  Checkpoint tensors_;
  std::uint64_t config_bytes_ = 0;
  std::vector<std::vector<std::optional<Place>>> places_;  // by block, by LinearId
};

}  // namespace llmq
