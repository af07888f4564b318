#include "export/gguf/gguf_places.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "export/gguf/family_limits.h"
#include "export/gguf/gguf_rope.h"
#include "export/gguf/type_mix.h"
#include "model/gguf/gguf_names.h"
#include "model/structures/llama_mixture.h"

namespace llmq {
namespace {

// Of a block behind the last; what else is carried along, as a tower is, has no place in a decoder's file,
// and of some families these blocks have none either.
bool is_further(const StoredTensor& tensor, const ModelSpec& spec, const GgufFamily& family) {
  const std::string_view below = family.names.further.empty() ? family.names.blocks : family.names.further;
  return !family.names.of_further.empty() && !family.names.further_are_read_only &&
         spec.carried.carries(tensor.name) && tensor.name.starts_with(below.substr(0, below.find('.') + 1)) &&
         !tensor.name.ends_with(".inv_freq");
}

class Places {
 public:
  Places(const Checkpoint& checkpoint, const LinearSource& linears, const ModelSpec& spec,
         const GgufFamily& family)
      : checkpoint_(checkpoint),
        linears_(linears),
        spec_(spec),
        family_(family),
        widths_(gguf_widths(spec)) {}

  std::vector<GgufPlace> take() {
    add("token_embd.weight", spec_.embedding.tensor, {spec_.vocab_size, spec_.hidden_size});
    add("output_norm.weight", spec_.final_norm.gain.tensor, {spec_.hidden_size});
    places_.back().shift = spec_.final_norm.offset;
    if (spec_.final_norm.bias.exists())
      add("output_norm.bias", spec_.final_norm.bias.tensor, {spec_.hidden_size});
    const std::string head = spec_.head_module + ".weight";
    if (!family_.tied && checkpoint_.find(head) != nullptr && spec_.embedding.tensor != head)
      add("output.weight", spec_.head, {spec_.vocab_size, spec_.hidden_size});
    if (spec_.block_embedding) add_block_embedding(*spec_.block_embedding);
    for (const BlockSpec& block : spec_.blocks) add_block(block);
    if (family_.writes_carried) add_carried();
    add_further();
    for (RopeFactors& factors : gguf_rope_factors(gguf_rope(spec_))) {
      const Shape shape{static_cast<std::int64_t>(factors.values.size())};
      places_.push_back({std::move(factors.name), shape, {}, 0, std::move(factors.values)});
    }
    std::sort(places_.begin(), places_.end(),
              [](const GgufPlace& a, const GgufPlace& b) { return gguf_tensor_before(a.name, b.name); });
    return std::move(places_);
  }

 private:
  GgufPlace& add(std::string name, const std::string& source, const Shape& shape, int heads = 0,
                 const LinearSpec* packed = nullptr) {
    const bool apart = packed == nullptr && !checkpoint_.at(source).in_order();
    return places_.emplace_back(GgufPlace{std::move(name), shape, {{source, packed, apart}}, heads, {}});
  }

  // What is carried along nobody else has looked at.
  [[noreturn]] void refuse(const StoredTensor& tensor, std::string found) const {
    fail(ErrorKind::kBadInput, {std::move(found), checkpoint_.path().string(), tensor.name,
                                "mend the checkpoint, or keep it in safetensors"});
  }
  void expect_shape(const StoredTensor& tensor, const Shape& shape) const {
    if (!(tensor.view.shape == shape))
      refuse(tensor,
             fmt::format("its shape is {} where {} was expected", tensor.view.shape.text(), shape.text()));
  }

  void add_block_embedding(const BlockEmbeddingSpec& embedding) {
    const std::int64_t all = embedding.width * std::ssize(spec_.blocks);
    const auto place = [&](const std::string& tensor, const Shape& shape) {
      add(gguf_name(family_, name_in_decoder(spec_, tensor)), tensor, shape);
    };
    place(embedding.table, {embedding.rows, all});
    place(embedding.weight(), {all, spec_.hidden_size});
    place(embedding.norm.gain.tensor, {embedding.width});
  }

  // What blocks have that nobody reads, as keys where they look at those of others.
  void add_carried() {
    for (const StoredTensor& tensor : checkpoint_.tensors()) {
      if (!spec_.carried.carries(tensor.name)) continue;
      std::string name = gguf_name(family_, name_in_decoder(spec_, tensor.name));
      if (gguf_block_of(name) >= 0) add(std::move(name), tensor.name, tensor.view.shape);
    }
  }

  // What one tensor of the checkpoint is there: one, or several parts of it.
  void add_parts(const std::vector<std::string>& names, const std::string& source, const Shape& shape,
                 int heads = 0, const LinearSpec* packed = nullptr) {
    for (const std::string& name : names) {
      std::optional<GgufPart> part;
      if (family_.part != nullptr) part = family_.part(name_in_gguf_block(name), widths_);
      if (part && packed == nullptr) expect_shape(checkpoint_.at(source), part->whole);
      GgufPlace& place = add(name, source, part ? part->shape : shape, heads, packed);
      place.part = std::move(part);
    }
  }

  GgufPlace* stack_of(const std::string& name, std::size_t first_of_block) {
    const auto found =
        std::find_if(places_.begin() + static_cast<std::ptrdiff_t>(first_of_block), places_.end(),
                     [&](const GgufPlace& place) { return place.name == name; });
    return found == places_.end() ? nullptr : &*found;
  }

  // A vector, of which those of one name become rows.
  void add_bias(std::string name, const std::string& source, std::int64_t elements, int heads,
                std::size_t first_of_block) {
    GgufPlace* const stack = stack_of(name, first_of_block);
    if (stack == nullptr) {
      add(std::move(name), source, Shape{elements}, heads);
      return;
    }
    stack->matrices.push_back({source, nullptr, !checkpoint_.at(source).in_order()});
    stack->shape = {std::ssize(stack->matrices), elements};
  }

  void add_linear(const LinearSpec& linear, std::size_t first_of_block) {
    const int heads = family_.turns_neighbours ? linear.rope_heads : 0;
    const std::string &weight = linear.weight.tensor, &bias = linear.bias.tensor;
    const LinearSpec* const packed =
        linears_.is_packed(linear.module) || !checkpoint_.at(weight).in_order() ? &linear : nullptr;
    if (linear.has_bias())
      add_bias(gguf_name(family_, name_in_decoder(spec_, bias)), bias, linear.out_features, heads,
               first_of_block);
    const std::vector<std::string> names = gguf_names(family_, name_in_decoder(spec_, weight));
    if (GgufPlace* const stack = stack_of(names.front(), first_of_block)) {
      stack->matrices.push_back({weight, packed});
      const std::int64_t each = matrices_of_each(names.front());
      stack->shape = {std::ssize(stack->matrices) / each, each * linear.out_features, linear.in_features};
      return;
    }
    add_parts(names, weight, {linear.out_features, linear.in_features}, heads, packed);
  }

  void add_block(const BlockSpec& block) {
    const std::size_t first = places_.size();
    for (const NormSpec& norm : block.norms) {
      if (!norm.gain.exists()) continue;
      add(gguf_name(family_, name_in_decoder(spec_, norm.gain.tensor)), norm.gain.tensor, norm.gain_shape());
      places_.back().shift = norm.offset;
      if (norm.bias.exists())
        add(gguf_name(family_, name_in_decoder(spec_, norm.bias.tensor)), norm.bias.tensor,
            Shape{norm.width});
    }
    for (const MixerTensor& tensor : block.tensors)
      add_parts({gguf_name(family_, name_in_decoder(spec_, tensor.place.tensor))}, tensor.place.tensor,
                tensor.shape);
    for (const LinearSpec& linear : block.linears) add_linear(linear, first);
  }

  // Matrix `number` of those that lie in each slab of a stack.
  void add_stacked(const std::string& name, const StoredTensor& stack, std::int64_t number,
                   std::int64_t matrices) {
    const Shape& shape = stack.view.shape;
    if (shape.elements() == 0 || shape[1] % matrices != 0)
      refuse(stack, fmt::format("{} is no stack of {} matrices a slab", shape.text(), matrices));
    const std::int64_t rows = shape[1] / matrices;
    GgufPlace place{name, {shape[0], rows, shape[2]}, {}, 0, {}};
    for (std::int64_t slab = 0; slab < shape[0]; ++slab)
      place.matrices.push_back({stack.name, nullptr, !stack.in_order(), slab * shape[1] + number * rows});
    places_.push_back(std::move(place));
  }

  std::vector<std::string> further_names(const StoredTensor& tensor, const std::string& as) const {
    std::vector<std::string> names = gguf_further_names(family_, as, std::ssize(spec_.blocks));
    if (names.empty())
      fail(ErrorKind::kUnsupported,
           {fmt::format("GGUF's {} models have no place for it", family_.architecture),
            checkpoint_.path().string(), tensor.name, "keep the model in safetensors"});
    return names;
  }

  // What stands in blocks behind the last, by the names that are there. Norms are those of the family.
  void add_further() {
    std::map<std::string, std::vector<const StoredTensor*>> experts;
    for (const StoredTensor& tensor : checkpoint_.tensors()) {
      if (!is_further(tensor, spec_, family_)) continue;
      const Shape& shape = tensor.view.shape;
      if (const auto slabs = find_stacked_experts(checkpoint_.config(), tensor.name);
          slabs && shape.rank() == 3) {
        const std::int64_t matrices = 1 + std::ssize(slabs->further);
        for (std::int64_t i = 0; i < matrices; ++i) {
          const std::string& after = i == 0 ? slabs->after : slabs->further[static_cast<std::size_t>(i - 1)];
          add_stacked(further_names(tensor, slabs->before + "0" + after).front(), tensor, i, matrices);
        }
        continue;
      }
      const std::vector<std::string> names = further_names(tensor, tensor.name);
      if (is_of_stack(names.front())) {
        experts[names.front()].push_back(&tensor);
        continue;
      }
      add_parts(names, tensor.name, shape);
      if (places_.back().name.ends_with("norm.weight")) places_.back().shift = family_.norm_shift;
    }
    for (auto& [name, of_each] : experts) {
      std::sort(of_each.begin(), of_each.end(), [](const StoredTensor* a, const StoredTensor* b) {
        return std::pair(a->name.size(), a->name) < std::pair(b->name.size(), b->name);  // by number
      });
      const Shape& each = of_each.front()->view.shape;
      if (each.rank() != 2 || each.elements() == 0)
        refuse(*of_each.front(), fmt::format("{} is the shape of no matrix", each.text()));
      for (std::size_t i = 0; i < of_each.size(); ++i) {
        expect_shape(*of_each[i], each);
        if (of_each[i]->name.find(fmt::format(".experts.{}.", i)) == std::string::npos)
          refuse(*of_each[i], fmt::format("stands where expert {} was expected", i));
      }
      GgufPlace place{name, {std::ssize(of_each), each[0], each.back()}, {}, 0, {}};
      for (const StoredTensor* const tensor : of_each)
        place.matrices.push_back({tensor->name, nullptr, !tensor->in_order()});
      places_.push_back(std::move(place));
    }
  }

  // How many linears lie in each matrix of a stack.
  std::int64_t matrices_of_each(const std::string& name) const {
    return hugging_face_name(family_, name).then.empty() ? 1 : 2;
  }

  bool is_of_stack(const std::string& name) const {
    const std::int64_t block = gguf_block_of(name), layers = std::ssize(spec_.blocks);
    return hugging_face_name(family_, name, layers, block - layers + 1).name.find('*') != std::string::npos;
  }

  const Checkpoint& checkpoint_;
  const LinearSource& linears_;
  const ModelSpec& spec_;
  const GgufFamily& family_;
  GgufWidths widths_;
  std::vector<GgufPlace> places_;
};

}  // namespace

std::int64_t further_gguf_blocks(const Checkpoint& checkpoint, const ModelSpec& spec,
                                 const GgufFamily& family) {
  const auto layers = std::ssize(spec.blocks);
  std::int64_t further = 0;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    if (!is_further(tensor, spec, family)) continue;
    further = std::max<std::int64_t>(further, 1);
    for (const std::string& name : gguf_further_names(family, tensor.name, layers))
      further = std::max<std::int64_t>(further, gguf_block_of(name) - layers + 1);
  }
  return further;
}

std::vector<GgufPlace> gguf_places(const Checkpoint& checkpoint, const LinearSource& linears,
                                   const ModelSpec& spec) {
  return Places(checkpoint, linears, spec, check_gguf_family(spec, checkpoint.path().string())).take();
}

}  // namespace llmq
