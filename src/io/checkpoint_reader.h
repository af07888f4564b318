// Opens what resolve_model() found: reads every header, and crosses the index with the shards.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "io/checkpoint.h"
#include "io/checkpoint_state.h"

namespace llmq {

struct GgufTensor;
struct ShardIndex;

// Fills a State; the steps of both containers.
class CheckpointReader {
 public:
  CheckpointReader(Io& io, Path path) : io_(io) { state_->path = std::move(path); }

  void read_directory();
  void read_gguf(ReadGguf read);
  void read_shards(const std::vector<Path>& shards, Json config);
  // Every stacked tensor becomes the tensors that are stacked in it (io/codes/stacks.cpp).
  void part_stacks(FindSlabs find);
  // Weights of FP8 are one tensor with their scales, where config.json says so (quantization_config with
  // quant_method fp8 or fbgemm_fp8); the scales are no tensors of their own from then on.
  void join_float8_blocks();
  // The same of bitsandbytes, with what stands beside its weights.
  void join_bitsandbytes();
  // The same of MLX, whose keys config.json then lacks.
  void join_mlx();
  // Names of ModelOpt's become those of others (io/codes/modelopt_names.cpp).
  void rename_modelopt_scales();
  void copy_tensors(const std::vector<Checkpoint::OwnedTensor>& tensors, Json config);
  std::shared_ptr<const Checkpoint::State> finish();

 private:
  void pass_over_scales_of_inputs(const std::set<std::string>& modules);
  static constexpr const char* kModeloptFile = "hf_quant_config.json";
  struct BesideWeights;
  void take_modelopt_config(Json file);
  [[noreturn]] void bad_codes(const StoredTensor& tensor, std::string message) const;
  StoredTensor::Part part_beside(const BesideWeights& beside, const StoredTensor& weight,
                                 const std::string& name, std::int64_t count,
                                 std::initializer_list<DType> types) const;
  StoredTensor matrix_of_four_bits(const StoredTensor& weight, const StoredTensor& state,
                                   const BesideWeights& beside) const;
  StoredTensor matrix_of_bytes(const StoredTensor& weight, const BesideWeights& beside) const;
  const Path& shard(const StoredTensor& tensor) const;
  [[noreturn]] void refuse_twice(const StoredTensor& tensor, const StoredTensor& other) const;
  void part_mxfp4(const StoredTensor& tensor, const StoredTensor& exponents, const SlabNames& names,
                  std::vector<StoredTensor>& parted);
  void refuse_many(const StoredTensor& stack, std::int64_t parts);
  void keep_whole(const SlabNames& names, std::vector<StoredTensor> stored, std::span<StoredTensor> parts);
  void add_shard(const Path& path);
  void add_tensor(const std::string& name, DType dtype, const Shape& shape, std::uint64_t offset,
                  int permuted_heads, int shard);
  void add_pieces(const NamedGgufTensor& named, const std::vector<GgufTensor>& tensors);
  // To what was just added, in that order.
  void join_gguf_scales(const std::vector<NamedGgufTensor>& named, const std::vector<GgufTensor>& tensors);
  // Every tensor of the index lies in the shard it names.
  void cross_check(const ShardIndex& index, const Path& index_path) const;
  void warn_unreferenced(const ShardIndex& index, const std::vector<std::string>& names) const;
  void* copy_of(const void* bytes, std::size_t size);
  void copy_odd_ones();

  Io& io_;
  std::vector<std::pair<std::string, SlabNames>> parted_;  // stacks, by their names
  std::size_t parts_ = 0;                                  // that all of them hold
  std::shared_ptr<Checkpoint::State> state_ = std::make_shared<Checkpoint::State>();
};

}  // namespace llmq
