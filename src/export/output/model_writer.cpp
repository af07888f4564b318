#include "export/output/model_writer.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "base/error.h"
#include "export/output/packed_writer.h"
#include "export/output/stack_assembly.h"
#include "io/gguf.h"
#include "model/families/tower.h"
#include "model/gguf/gguf_model.h"
#include "model/linear_source.h"
#include "model/packed/quantization_config.h"
#include "model/packed/unpacked.h"
#include "ranks/agreement.h"
#include "tokenizer/gguf_tokenizer.h"

namespace llmq {
namespace {

class DirectoryWriter : public ModelWriter {
 public:
  using Names = std::map<std::string, std::string>;  // of the checkpoint's tensors, where loaders have others
  DirectoryWriter(Io& io, const OutputTarget& target, const DirectoryContents& contents, Json config,
                  Names renamed)
      : directory_(io, target, contents), config_(std::move(config)), renamed_(std::move(renamed)) {}

  void add_quantized(const std::string& module, const QuantizedMatrix&) override {
    fail(ErrorKind::kInternal, {"a packed weight was given to a dense writer", {}, module, {}});
  }
  void add_dense(const std::string& tensor, DType dtype, const Shape& shape,
                 std::span<const std::byte> bytes) override {
    directory_.add(name_of(tensor), dtype, shape, bytes);
  }
  void append_dense(const std::string& tensor, DType dtype, const Shape& shape,
                    std::span<const std::byte> bytes) override {
    directory_.append(name_of(tensor), dtype, shape, bytes);
  }
  std::function<void()> begin_commit(const Json& findings) override {
    return directory_.begin_commit(findings);
  }
  std::function<void()> begin_sync() override { return directory_.begin_sync(); }
  std::vector<Json> committed() const override { return directory_.committed(); }
  Ranks& ranks() const override { return directory_.ranks(); }
  bool writes(const std::string& tensor) const override { return directory_.writes(name_of(tensor)); }
  std::vector<Json> share_committed(Committed what) override { return directory_.share_committed(what); }
  Checkpoint written() const override { return directory_.written(config_); }
  std::string complete() override { return directory_.complete(config_); }
  Path directory() const override { return directory_.files(); }
  std::string publish(const std::vector<std::pair<std::string, std::string>>& extra_files,
                      const ManifestText& manifest, bool move_latest) override {
    return directory_.publish(extra_files, manifest, move_latest);
  }
  std::uint64_t bytes() const override { return directory_.bytes(); }

 protected:
  // A tensor of the checkpoint as the output has it.
  virtual std::string name_of(const std::string& tensor) const {
    const auto found = renamed_.find(tensor);
    return found == renamed_.end() ? tensor : found->second;
  }

  ModelDirectory directory_;
  Json config_;

 private:
  Names renamed_;
};

// NAME.k_scale as the format has it.
std::string stored_kv_scale(const std::string& name, const PackedFormatRow& format) {
  const std::size_t at = name.rfind('.') + 1;
  return format.kv_scales_in_projections ? name.substr(0, at) + name[at] + "_proj." + name.substr(at) : name;
}

class PackedWriter final : public DirectoryWriter {
 public:
  PackedWriter(Io& io, const OutputTarget& target, const DirectoryContents& contents, Json config,
               Names renamed, const PackedFormatRow& format, std::span<const PlannedModule> modules,
               std::optional<StackAssembly> stacks)
      : DirectoryWriter(io, target, contents, std::move(config), std::move(renamed)),
        format_(format),
        stacks_(std::move(stacks)) {
    for (const PlannedModule& m : modules) planned_[m.module] = m;
  }

  void add_quantized(const std::string& module, const QuantizedMatrix& matrix) override {
    const auto planned = planned_.find(module);
    if (planned == planned_.end() || !(planned->second.scheme == matrix.scheme) ||
        (!planned->second.column_groups && !matrix.column_group.empty()) ||
        (!format_.dense && !matrix.kept_columns.empty()))
      fail(ErrorKind::kInternal, {"a weight was not quantized as declared", {}, module, {}});
    if (!is_written_here(module)) return;  // another rank's alone
    std::vector<PackedTensor> packed = format_.pack(planned->second, matrix);
    if (stacks_) packed = stacks_->add(module, packed);
    // What lies in another rank's shard is that one's to give, which quantizes the weight, too.
    std::erase_if(packed,
                  [&](const PackedTensor& tensor) { return !directory_.writes(tensor.declaration.name); });
    const auto left = std::count_if(packed.begin(), packed.end(), [&](const PackedTensor& tensor) {
      return directory_.lacks(tensor.declaration.name);
    });
    for (const PackedTensor& tensor : packed)
      if (left == 0 || directory_.lacks(tensor.declaration.name))  // else an interrupted run left it
        directory_.add(tensor.declaration.name, tensor.declaration.dtype, tensor.declaration.shape,
                       tensor.bytes);
  }
  bool lacks_module(const std::string& module) const override {
    return any_of_its_tensors(module, [&](const std::string& name) { return directory_.lacks(name); });
  }
  std::string complete() override {
    std::vector<std::pair<std::string, std::string>> copy;
    if (!format_.config_copy.empty()) {
      const Json& said = config_.at("quantization_config");
      copy.emplace_back(format_.config_copy,
                        (format_.config_file ? format_.config_file(said) : said).dump(2) + "\n");
    }
    return directory_.complete(config_, copy);
  }

 protected:
  std::string name_of(const std::string& tensor) const override {
    return is_kv_scale(tensor) ? stored_kv_scale(tensor, format_) : DirectoryWriter::name_of(tensor);
  }

 private:
  template <class Is>
  bool any_of_its_tensors(const std::string& module, const Is& is) const {
    const std::vector<TensorDeclaration> tensors =
        stacks_ ? stacks_->declarations_of(module) : format_.declare(planned_.at(module));
    return std::any_of(tensors.begin(), tensors.end(),
                       [&](const TensorDeclaration& tensor) { return is(tensor.name); });
  }
  bool is_written_here(const std::string& module) const {
    return any_of_its_tensors(module, [&](const std::string& name) { return directory_.writes(name); });
  }

  const PackedFormatRow& format_;
  std::optional<StackAssembly> stacks_;  // of a stacked format
  std::map<std::string, PlannedModule> planned_;
};

// Gives the contents and the config what a format's loaders want beside tensors, and a tied embedding the
// name that they have for it: what is called otherwise then.
DirectoryWriter::Names suit_to_loaders(const LoaderWishes& wishes, const Checkpoint& checkpoint,
                                       const ModelSpec& spec, DirectoryContents& contents, Json& config) {
  contents.header_format = wishes.header;
  // A copy: a new member may move the others.
  if (!wishes.config_twin.empty()) config[wishes.config_twin] = Json(config.at("quantization_config"));
  if (wishes.tied_table.empty()) return {};
  contents.parameters = static_cast<std::uint64_t>(spec.parameters());
  const std::string name(wishes.tied_table);
  if (!spec.tied_head || checkpoint.find(name) != nullptr) return {};
  for (TensorDeclaration& tensor : contents.tensors)
    if (tensor.name == spec.embedding.tensor) tensor.name = name;
  return {{spec.embedding.tensor, name}};
}

// The linears a loader must leave alone. An output head is a linear of the model even when it shares the
// embedding and no tensor carries its name.
std::vector<std::string> ignored_linears(std::span<const PlannedModule> modules,
                                         std::span<const std::string> ignored, const ModelSpec& spec) {
  std::vector<std::string> names(ignored.begin(), ignored.end());
  if (spec.block_embedding) names.push_back(spec.block_embedding->projection);
  const bool packs_head = std::any_of(modules.begin(), modules.end(),
                                      [](const PlannedModule& m) { return m.module == "lm_head"; });
  if (!packs_head && std::find(names.begin(), names.end(), "lm_head") == names.end())
    names.push_back("lm_head");
  return names;
}

Json config_of(const PackedFormatRow& row, std::span<const PlannedModule> modules,
               const std::vector<std::string>& dense, const Checkpoint& checkpoint, const ModelSpec& spec) {
  const bool tower = std::any_of(modules.begin(), modules.end(),
                                 [&](const PlannedModule& m) { return spec.carried.carries(m.module); });
  const std::vector<std::string> beside =
      tower ? find_tower(checkpoint, spec).beside : std::vector<std::string>();
  return row.config({modules, dense, spec.wrapper ? &*spec.wrapper : nullptr, &spec.carried, beside});
}

// Neither the files being read are replaced nor their directory added to: a model directory holds one model.
// Links are followed, so that two names of one place are seen.
void refuse_own_source(const Checkpoint& checkpoint, const OutputTarget& target) {
  std::error_code unknown;
  const Path from = std::filesystem::weakly_canonical(checkpoint.path(), unknown),
             to = std::filesystem::weakly_canonical(target.directory, unknown);
  if (from.empty()) return;
  const Path inside = to.lexically_relative(from);
  const bool same = inside == ".";
  if (!same && (inside.empty() || *inside.begin() == ".." || checkpoint.is_gguf())) return;
  fail(ErrorKind::kUsage,
       {same ? "the output directory is the model's own" : "the output lies inside the model's own directory",
        target.directory.string(),
        {},
        "name another output directory"});
}

void declare_kv_scales(const ModelSpec& spec, const PackedFormatRow& format,
                       std::vector<TensorDeclaration>& tensors) {
  for (const BlockSpec& block : spec.blocks)
    for (const char* which : {"k_scale", "v_scale"})
      if (block.pages.kv_heads > 0)
        tensors.push_back({stored_kv_scale(kv_scale_name(block, which), format), DType::kF32, {1}});
}

}  // namespace

Checkpoint ModelWriter::written() const {
  fail(ErrorKind::kInternal, "this writer keeps nothing that could be read back");
}

void written_order(std::vector<TensorDeclaration>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorDeclaration& a, const TensorDeclaration& b) {
    return strverscmp(a.name.c_str(), b.name.c_str()) < 0;  // digits as numbers, all else as bytes
  });
}

std::string_view torch_dtype_name(DType dtype) {
  if (dtype == DType::kBF16) return "bfloat16";
  if (dtype == DType::kF16) return "float16";
  if (dtype == DType::kF32) return "float32";
  fail(ErrorKind::kInternal, "no model is of type {}", dtype_row(dtype).name);
}

void set_dtype(Json& config, DType dtype) {
  // A wrapper's decoder says its own, too.
  if (Json* const text = config.find("text_config") == nullptr ? nullptr : &config["text_config"];
      text != nullptr && text->is_object())
    for (const char* key : {"torch_dtype", "dtype"})
      if (text->find(key) != nullptr) (*text)[key] = torch_dtype_name(dtype);
  const bool old_spelling = config.find("torch_dtype") != nullptr,
             new_spelling = config.find("dtype") != nullptr;
  if (old_spelling || !new_spelling) config["torch_dtype"] = torch_dtype_name(dtype);
  if (new_spelling || !old_spelling) config["dtype"] = torch_dtype_name(dtype);
}

// Declared by the writer, where the output has a quantized KV cache at all.
bool is_kv_scale(const std::string& name) {
  return name.ends_with(".self_attn.k_scale") || name.ends_with(".self_attn.v_scale");
}

DType written_dtype(const StoredTensor& tensor) {
  if (const ChangedNumbers* changed = changed_numbers(tensor))
    return changed->rounded_to().value_or(DType::kBF16);
  if (tensor.bits_and_bytes && tensor.view.dtype == DType::kF4) return tensor.bits_and_bytes->dtype;
  return is_block_type(tensor.view.dtype) || tensor.is_scaled() ? DType::kBF16 : tensor.view.dtype;
}

std::vector<TensorDeclaration> dense_tensors(const Checkpoint& checkpoint,
                                             std::span<const PlannedModule> modules,
                                             const std::function<DType(const StoredTensor&)>& dtype) {
  std::set<std::string> packed;
  for (const PlannedModule& m : modules)
    for (std::string& name : weight_tensor_names(m.module)) packed.insert(std::move(name));
  std::vector<TensorDeclaration> tensors;
  for (const StoredTensor& tensor : checkpoint.tensors())
    if (packed.count(tensor.name) == 0 && !is_kv_scale(tensor.name))
      tensors.push_back({tensor.name, dtype(tensor), tensor.view.shape});
  return tensors;
}

std::vector<TensorDeclaration> written_dense_tensors(const Checkpoint& checkpoint,
                                                     std::span<const PlannedModule> modules,
                                                     const std::function<DType(const StoredTensor&)>& dtype) {
  std::vector<TensorDeclaration> tensors;
  std::set<std::string> weights;
  for (const PlannedModule& m : modules) weights.insert(m.module + ".weight");
  for (TensorDeclaration& tensor : dense_tensors(checkpoint, modules, dtype))
    if (checkpoint.at(tensor.name).stack < 0) tensors.push_back(std::move(tensor));
  for (const StoredStack& stack : checkpoint.stacks())
    if (is_carried(stack, weights, checkpoint.path().string()))
      for (const StoredTensor& tensor : stack.tensors)
        tensors.push_back({tensor.name, dtype(tensor), tensor.view.shape});
  return tensors;
}

std::uint64_t dense_bytes(const Checkpoint& checkpoint, std::span<const PlannedModule> modules) {
  return declared_bytes(written_dense_tensors(checkpoint, modules, written_dtype));
}

void add_companions(Io& io, const Checkpoint& checkpoint, DirectoryContents& contents) {
  contents.copies = checkpoint.companion_files();
  if (!checkpoint.is_gguf()) return;
  const GgufFile file = open_gguf(io, checkpoint.path());
  contents.texts = gguf_companion_texts(file.header);
  const GgufTokenizer made = gguf_tokenizer(file.header);
  contents.texts.emplace_back("tokenizer.json", made.tokenizer.dump(1) + "\n");
  contents.texts.emplace_back("tokenizer_config.json", made.config.dump(2) + "\n");
  contents.texts.emplace_back("special_tokens_map.json", made.special_tokens.dump(2) + "\n");
}

namespace {

DirectoryContents packed_contents(Io& io, const PackedFormatRow& row, const Checkpoint& checkpoint,
                                  const ModelSpec& spec, std::span<const PlannedModule> modules,
                                  const std::optional<StackAssembly>& stacks,
                                  std::optional<KvCacheType> kv_cache) {
  DirectoryContents contents;
  contents.tensors = written_dense_tensors(checkpoint, modules, written_dtype);
  if (stacks)
    for (TensorDeclaration& tensor : stacks->declarations()) contents.tensors.push_back(std::move(tensor));
  else
    for (const PlannedModule& m : modules)
      for (TensorDeclaration& tensor : row.declare(m)) contents.tensors.push_back(std::move(tensor));
  if (kv_cache) {
    check_kv_cache_place(row, {});
    declare_kv_scales(spec, row, contents.tensors);
  }
  add_companions(io, checkpoint, contents);
  return contents;
}

Json packed_config(const PackedFormatRow& row, const Checkpoint& checkpoint, const ModelSpec& spec,
                   std::span<const PlannedModule> modules, std::span<const std::string> ignored,
                   const OutputTraits& traits) {
  Json config = checkpoint.config();
  if (row.dense)
    config.erase("quantization_config");
  else
    config["quantization_config"] =
        config_of(row, modules, ignored_linears(modules, ignored, spec), checkpoint, spec);
  if (traits.kv_cache)
    config["quantization_config"]["kv_cache_scheme"] = row.kv_cache_scheme(*traits.kv_cache);
  if (row.transform_config != nullptr && !traits.rotated.empty())
    config["quantization_config"]["transform_config"] =
        row.transform_config(traits.rotated, spec.wrapper ? &*spec.wrapper : nullptr);
  else if (const Json* const told = told_transforms(checkpoint.config());
           row.transform_config != nullptr && told != nullptr)
    config["quantization_config"]["transform_config"] = *told;
  // A loader running in another type would round the scales, or the weights.
  if (!row.keeps_dtype) set_dtype(config, row.dense ? DType::kF32 : modules.front().scheme.scale_dtype);
  return config;
}

}  // namespace

std::unique_ptr<ModelWriter> open_writer(Io& io, const std::string& format, const OutputTarget& target,
                                         const Checkpoint& checkpoint, const ModelSpec& spec,
                                         std::span<const PlannedModule> modules,
                                         std::span<const std::string> ignored, const OutputTraits& traits) {
  const PackedFormatRow* row = nullptr;
  DirectoryContents contents;
  std::optional<StackAssembly> stacks;
  Json config;
  DirectoryWriter::Names renamed;
  begin_together(ranks_of(target), [&] {
    check_expressible(format, modules);
    refuse_own_source(checkpoint, target);
    row = &packed_format(format);
    if (row->stacked) stacks.emplace(checkpoint, *row, modules);
    contents = packed_contents(io, *row, checkpoint, spec, modules, stacks, traits.kv_cache);
    config = packed_config(*row, checkpoint, spec, modules, ignored, traits);
    renamed = suit_to_loaders(row->made_for, checkpoint, spec, contents, config);
    written_order(contents.tensors);
  });
  return std::make_unique<PackedWriter>(io, target, contents, std::move(config), std::move(renamed), *row,
                                        modules, std::move(stacks));
}

std::unique_ptr<ModelWriter> open_dense_writer(Io& io, const OutputTarget& target,
                                               const Checkpoint& checkpoint,
                                               std::vector<TensorDeclaration> tensors, Json config,
                                               const PackedFormatRow* format, const ModelSpec* spec) {
  DirectoryContents contents;
  DirectoryWriter::Names renamed;
  begin_together(ranks_of(target), [&] {
    refuse_own_source(checkpoint, target);
    contents.tensors = std::move(tensors);
    add_companions(io, checkpoint, contents);
    if (format != nullptr) renamed = suit_to_loaders(format->made_for, checkpoint, *spec, contents, config);
    written_order(contents.tensors);
  });
  return std::make_unique<DirectoryWriter>(io, target, contents, std::move(config), std::move(renamed));
}

}  // namespace llmq
