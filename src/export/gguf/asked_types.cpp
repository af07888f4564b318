#include "export/gguf/asked_types.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/pattern.h"
#include "model/gguf/gguf_names.h"
#include "model/packed/unpacked.h"

namespace llmq {
namespace {

constexpr std::string_view kEmbeddingTensor = "token_embd.weight", kHeadTensor = "output.weight";

// A module, and the tensors of the file that are made of it.
struct NamedModule {
  std::vector<std::string> names;  // any of which names it
  std::string tensor;              // the checkpoint's
  std::vector<std::string> into;
};

std::string module_of(const std::string& tensor) {
  constexpr std::string_view kWeight = ".weight";
  return tensor.ends_with(kWeight) ? tensor.substr(0, tensor.size() - kWeight.size()) : tensor;
}

// All that a decoder has but for biases. Blocks behind the last keep what the mix gives them.
// Without a head of its own the file has the embedding for it, which either name is that of.
std::vector<NamedModule> named_modules(const ModelSpec& spec, const GgufFamily& family, bool has_head) {
  std::vector<NamedModule> modules;
  const auto add = [&](const std::string& tensor, std::vector<std::string> into) {
    modules.push_back({{module_of(tensor)}, tensor, std::move(into)});
  };
  const auto add_named = [&](const std::string& tensor) {
    add(tensor, gguf_names(family, name_in_decoder(spec, tensor)));
  };
  const std::string embedding = hugging_face_name(family, kEmbeddingTensor).name;
  modules.push_back({{module_of(embedding), module_of(spec.embedding.tensor)},
                     spec.embedding.tensor,
                     {std::string(kEmbeddingTensor)}});
  if (!has_head) modules.back().names.push_back(spec.head_module);
  if (spec.block_embedding) {
    add_named(spec.block_embedding->table);
    add_named(spec.block_embedding->weight());
    add_named(spec.block_embedding->norm.gain.tensor);
  }
  for (const BlockSpec& block : spec.blocks) {
    for (const NormSpec& norm : block.norms)
      if (norm.gain.exists()) add_named(norm.gain.tensor);
    for (const MixerTensor& tensor : block.tensors) add_named(tensor.place.tensor);
    for (const LinearSpec& linear : block.linears)
      modules.push_back({{linear.module},
                         linear.weight.tensor,
                         gguf_names(family, name_in_decoder(spec, linear.weight.tensor))});
  }
  if (spec.final_norm.gain.exists()) add(spec.final_norm.gain.tensor, {"output_norm.weight"});
  if (has_head) modules.push_back({{spec.head_module}, spec.head, {std::string(kHeadTensor)}});
  return modules;
}

class TypeSearch {
 public:
  TypeSearch(std::span<const GgufTypeRequest> requests, const GgufFileType* file_type,
             const Checkpoint& checkpoint, std::span<const GgufMixTensor> tensors, const std::string& file,
             const std::string& key)
      : requests_(requests),
        keeps_codes_(file_type == nullptr || is_of_converter(*file_type)),
        checkpoint_(checkpoint),
        file_(file),
        key_(key) {
    for (const GgufTypeRequest& request : requests) patterns_.push_back({NamePattern(request.match)});
    for (const GgufMixTensor& tensor : tensors) tensors_[tensor.name] = &tensor;
  }

  void look_at(const NamedModule& module) {
    std::optional<DType> type;
    std::vector<Pattern*> matching;
    for (std::size_t i = 0; i < patterns_.size(); ++i) {
      const NamePattern& pattern = patterns_[i].pattern;
      if (std::none_of(module.names.begin(), module.names.end(),
                       [&](const std::string& name) { return pattern.matches(name); }))
        continue;
      matching.push_back(&patterns_[i]);
      type = requests_[i].type ? *requests_[i].type : dense_type(module);
    }
    for (const std::string& name : module.into) {
      const auto found = tensors_.find(name);
      if (found == tensors_.end()) continue;
      const bool rounded = may_have_block_type(*found->second);
      for (Pattern* const pattern : matching)
        (rounded ? pattern->used : pattern->left) = module.names.front();
      if (rounded) parts_[name].push_back({module.names.front(), type});
    }
  }

  AskedGgufTypes end() {
    for (const auto& [name, parts] : parts_)
      if (std::any_of(parts.begin(), parts.end(), [](const Part& part) { return part.type.has_value(); }))
        settle(*tensors_.at(name), parts);
    for (const Pattern& pattern : patterns_)
      if (pattern.used.empty()) asked_.warnings.push_back(without_effect(pattern));
    if (unfit_ > 1) first_unfit_ += fmt::format(", and so it is with {} more", unfit_ - 1);
    if (unfit_ > 0) asked_.warnings.push_back(first_unfit_);
    return std::move(asked_);
  }

 private:
  struct Pattern {
    NamePattern pattern;
    std::string used = {}, left = {};  // a module that it names and that is rounded, and one that never is
  };
  struct Part {
    std::string module;
    std::optional<DType> type;  // none: the mix chooses
    std::string text() const {
      return type ? fmt::format("{} {}", module, dtype_row(*type).name) : module + " none";
    }
  };

  DType dense_type(const NamedModule& module) const {
    const StoredTensor* const stored = checkpoint_.find(module.tensor);
    const DType type = stored == nullptr ? DType::kBF16
                       : stored->pieces  ? stored->pieces->front().view.dtype
                                         : stored_type(checkpoint_, *stored);
    return type == DType::kF32 || type == DType::kF16 ? type : DType::kBF16;
  }

  void settle(const GgufMixTensor& tensor, const std::vector<Part>& parts) {
    const auto other = std::find_if(parts.begin(), parts.end(),
                                    [&](const Part& part) { return part.type != parts.front().type; });
    if (other != parts.end())
      fail(ErrorKind::kUsage,
           {fmt::format("{} is one tensor of {} linears, and they were given different types: {}, {}",
                        tensor.name, parts.size(), parts.front().text(), other->text()),
            file_, key_, "name all of them in one pattern"});
    const DType asked = *parts.front().type, fits = fitting_gguf_type(asked, tensor.shape.back());
    if (keeps_codes_ && tensor.kept && asked != tensor.stored)
      fail(ErrorKind::kUnsupported,
           {fmt::format("{} keeps its codes of {} in a file of this type", tensor.name,
                        dtype_row(tensor.stored).name),
            file_, key_, "leave it out, or choose a type that rounds all, such as q4_k_m"});
    if (fits != asked && unfit_++ == 0)
      first_unfit_ =
          fmt::format("{}: {} becomes {}, for blocks of {} do not divide its rows of {}", key_, tensor.name,
                      dtype_row(fits).name, dtype_row(asked).name, tensor.shape.back());
    asked_.types[tensor.name] = fits;
  }

  std::string without_effect(const Pattern& pattern) const {
    const std::string& text = pattern.pattern.text();
    if (!pattern.left.empty())
      return fmt::format("{}: '{}' names {}, which is never quantized", key_, text, pattern.left);
    return fmt::format(
        "{}: '{}' matches no linear of this model, whose names are the checkpoint's, such as "
        "model.layers.0.mlp.down_proj",
        key_, text);
  }

  std::span<const GgufTypeRequest> requests_;
  bool keeps_codes_;
  const Checkpoint& checkpoint_;
  const std::string &file_, &key_;
  std::vector<Pattern> patterns_;
  std::map<std::string, const GgufMixTensor*> tensors_;
  std::map<std::string, std::vector<Part>> parts_;
  AskedGgufTypes asked_;
  std::int64_t unfit_ = 0;
  std::string first_unfit_;
};

}  // namespace

Json tensor_types_json(const std::vector<GgufTypeRequest>& requests) {
  Json list = Json::array();
  for (const GgufTypeRequest& one : requests)
    list.push_back(Json::object(
        {{"match", Json(one.match)}, {"type", Json(one.type ? gguf_tensor_type_name(*one.type) : "dense")}}));
  return list;
}

std::vector<GgufTypeRequest> tensor_types_of(const StatementReader& asked) {
  constexpr std::string_view kDense = "dense";
  std::vector<GgufTypeRequest> requests;
  for (const Json& item : asked.items("tensor_types")) {
    const StatementReader one = asked.at(item);
    const std::string& word = one.text("type");
    const std::optional<DType> type = find_gguf_tensor_type(word);
    if (!type && word != kDense) one.refuse(fmt::format("'{}' is no type of a GGUF", word), "tensor_types");
    requests.push_back({one.text("match"), type});
  }
  return requests;
}

AskedGgufTypes find_asked_types(std::span<const GgufTypeRequest> requests, const GgufFileType* file_type,
                                const Checkpoint& checkpoint, const ModelSpec& spec,
                                std::span<const GgufMixTensor> tensors, const std::string& file,
                                const std::string& key) {
  const GgufFamily* const family = gguf_family(spec);
  if (requests.empty() || family == nullptr) return {};
  TypeSearch search(requests, file_type, checkpoint, tensors, file, key);
  const bool has_head = std::any_of(tensors.begin(), tensors.end(),
                                    [](const GgufMixTensor& tensor) { return tensor.name == kHeadTensor; });
  for (const NamedModule& module : named_modules(spec, *family, has_head)) search.look_at(module);
  return search.end();
}

void give_asked_types(const std::map<std::string, DType>& asked, std::span<const GgufMixTensor> tensors,
                      std::vector<DType>& types) {
  for (std::size_t i = 0; i < types.size(); ++i)
    if (const auto found = asked.find(tensors[i].name); found != asked.end()) types[i] = found->second;
}

}  // namespace llmq
