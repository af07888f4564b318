// config.json of a wrapper, the names that its tensors have, and whether its tower is whole.
//
// Three layouts of names are about: model.layers and visual (Qwen2-VL as it was published),
// language_model.model.layers and vision_tower (LLaVA, Mistral 3), model.language_model.layers and
// model.visual or model.vision_tower (as Transformers holds them, and Qwen3-VL). Transformers reads each of
// them for every wrapper and saves one of the older two, so that the names that are there decide.
#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "model/decoder_config.h"
#include "model/families/wrapper.h"

namespace llmq {
namespace {

[[noreturn]] void refuse_parts(const Checkpoint& checkpoint, std::string name, std::string message,
                               std::string hint) {
  fail(ErrorKind::kBadInput,
       {std::move(message), checkpoint.path().string(), std::move(name), std::move(hint)});
}

// Tensors are sorted by name.
std::span<const StoredTensor> tensors_under(const Checkpoint& checkpoint, const std::string& place) {
  const std::vector<StoredTensor>& all = checkpoint.tensors();
  const auto before = [](const StoredTensor& tensor, const std::string& name) { return tensor.name < name; };
  const auto first = std::lower_bound(all.begin(), all.end(), place + ".", before),
             last = std::lower_bound(first, all.end(), place + "/", before);  // '/' comes behind '.'
  return {first, last};
}

std::string decoder_prefix(const Checkpoint& checkpoint) {
  std::string found;
  for (const char* const prefix : {"model", "model.language_model", "language_model.model"}) {
    if (tensors_under(checkpoint, prefix + std::string(".layers")).empty()) continue;
    if (!found.empty())
      refuse_parts(checkpoint, prefix + std::string(".layers"),
                   fmt::format("blocks lie here and under {}.layers, in two layouts of names", found),
                   "keep one of the two");
    found = prefix;
  }
  if (found.empty())
    refuse_parts(checkpoint, "model.language_model.layers", "no block of a decoder lies in the checkpoint",
                 "is the download complete? model.layers and language_model.model.layers would do as well");
  return found;
}

// Families name everything below "model".
void put_under(const std::string& prefix, ModelSpec& spec) {
  const auto rename = [&](std::string& name) {
    if (name.starts_with("model.")) name.replace(0, std::string_view("model").size(), prefix);
  };
  const auto rename_norm = [&](NormSpec& norm) { rename(norm.gain.tensor), rename(norm.bias.tensor); };
  rename(spec.embedding.tensor);
  rename(spec.embedding.positions);
  rename_norm(spec.final_norm);
  if (spec.block_embedding) {
    rename(spec.block_embedding->table), rename(spec.block_embedding->projection);
    rename_norm(spec.block_embedding->norm);
  }
  std::for_each(spec.carried.parts.begin(), spec.carried.parts.end(), rename);
  for (BlockSpec& block : spec.blocks) {
    rename(block.prefix);
    std::for_each(block.norms.begin(), block.norms.end(), rename_norm);
    for (LinearSpec& linear : block.linears)
      rename(linear.module), rename(linear.weight.tensor), rename(linear.bias.tensor);
    for (MixerTensor& tensor : block.tensors) rename(tensor.place.tensor);
  }
}

// "blocks.3.attn.qkv.weight" -> {"blocks", 3, "attn.qkv.weight"}; no place where there is no number.
struct InBlock {
  std::string blocks, rest;
  std::int64_t number = -1;
};
InBlock in_block(std::string_view name) {
  for (std::size_t dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.', dot + 1)) {
    const std::size_t end = name.find('.', dot + 1);
    if (end == std::string_view::npos || end - dot > 6) continue;
    const std::string_view digits = name.substr(dot + 1, end - dot - 1);
    if (digits.empty() || digits.find_first_not_of("0123456789") != std::string_view::npos) continue;
    return {std::string(name.substr(0, dot)), std::string(name.substr(end + 1)),
            std::stoll(std::string(digits))};
  }
  return {};
}

// The blocks of a tower are built alike, and the config says how many there are: what is missing shows
// without knowing any tower.
void check_whole(const Checkpoint& checkpoint, const std::string& part, std::int64_t depth,
                 const char* config = "vision_config") {
  std::map<std::string, std::map<std::int64_t, std::set<std::string>>> stacks;
  for (const StoredTensor& tensor : tensors_under(checkpoint, part)) {
    InBlock place = in_block(std::string_view(tensor.name).substr(part.size() + 1));
    if (place.number >= 0) stacks[place.blocks][place.number].insert(std::move(place.rest));
  }
  for (const auto& [blocks, by_number] : stacks) {
    const bool towers_own =
        blocks.ends_with("blocks") || blocks.ends_with("layers") || blocks.ends_with("layer");
    if (!towers_own) continue;
    std::set<std::string> all;
    for (const auto& [number, names] : by_number) all.insert(names.begin(), names.end());
    const std::int64_t count = std::max(depth, by_number.rbegin()->first + 1);
    for (std::int64_t number = 0; number < count; ++number) {
      const auto found = by_number.find(number);
      const std::string place = fmt::format("{}.{}.{}", part, blocks, number);
      if (found == by_number.end())
        refuse_parts(checkpoint, place, fmt::format("is missing, and the tower has {} blocks", count),
                     "is the download complete?");
      for (const std::string& name : all)
        if (!found->second.contains(name))
          refuse_parts(checkpoint, place + "." + name, "is missing, and other blocks of the tower have it",
                       "is the download complete?");
      if (number >= depth && depth > 0)
        refuse_parts(checkpoint, place, fmt::format("is there, and {} says {} blocks", config, depth),
                     "config.json is that of another model");
    }
  }
}

std::int64_t tower_depth(ConfigFields& config, const char* of) {
  const Json* const tower = config.find(of);
  if (tower == nullptr) return 0;
  ConfigFields fields(*tower, config.file(), of);
  const char* const key = fields.find("depth") != nullptr ? "depth" : "num_hidden_layers";
  return fields.integer(key, kLayersRange, 0);
}

struct TowerParts {
  const char* config;
  std::int64_t depth;
  std::span<const char* const> parts;
};

void find_parts(const Checkpoint& checkpoint, const Wrapper& wrapper, const TowerParts& tower,
                CarriedSpec& carried) {
  for (const char* const part : tower.parts) {
    const std::size_t before = carried.parts.size();
    for (const std::string& place : {std::string(part), "model." + std::string(part)}) {
      if (tensors_under(checkpoint, place).empty()) continue;
      carried.parts.push_back(place);
      check_whole(checkpoint, place, tower.depth, tower.config);
    }
    if (carried.parts.size() == before)
      refuse_parts(checkpoint, part,
                   fmt::format("a {} has this part, and no tensor of it is stored", wrapper.model_type),
                   "is the download complete?");
  }
}

// What Transformers' class has where a text_config leaves a size out, as LLaVA 1.5's does.
Json with_sizes(const Json& text, std::string_view family) {
  Json all = text;
  if (family != "llama" || !text.is_object()) return all;
  for (const auto& [key, value] : {std::pair{"hidden_size", 4096}, std::pair{"intermediate_size", 11008},
                                   std::pair{"num_hidden_layers", 32}, std::pair{"num_attention_heads", 32},
                                   std::pair{"vocab_size", 32000}})
    if (text.find(key) == nullptr) all[key] = value;
  return all;
}

const Family& family_of(const Wrapper& wrapper, const Json& json, ConfigFields& text) {
  text.find("model_type");
  if (const Family* const family = wrapped_family(wrapper, json)) return *family;
  std::string known;
  for (const Family* const family : wrapper.decoders)
    known += (known.empty() ? "" : ", ") + std::string(family->model_type);
  text.unsupported("model_type",
                   fmt::format("the decoder \"{}\" of a {} is not known here", text.text("model_type"),
                               wrapper.model_type),
                   "known: " + known);
}

// Transformers 4 wrote the decoder's keys a second time beside text_config: those that say the same say
// nothing.
void pass_over_repeated(ConfigFields& config, const Json& text, const Json& all) {
  for (const auto& [key, value] : all.members())
    if (const Json* own = text.find(key); own != nullptr && *own == value) config.find(key);
}

// The decoder's fields into `spec`; whether any of them says that its head is tied.
bool read_text(const Checkpoint& checkpoint, const Wrapper& wrapper, ConfigFields& config, ModelSpec& spec) {
  const auto tensors = static_cast<std::int64_t>(checkpoint.tensors().size());
  const Json* const text = config.find("text_config");
  if (text == nullptr) {
    if (!wrapper.flat) config.bad("text_config", "is missing", "it holds the decoder's keys");
    spec.wrapper->decoder = wrapper.decoders.front()->model_type;
    read_decoder(config, *wrapper.decoders.front(), tensors, spec);
    return config.flag("tie_word_embeddings", false);
  }
  const Family* const family = wrapped_family(wrapper, checkpoint.config());
  const Json sized = with_sizes(*text, family == nullptr ? "" : family->model_type);
  ConfigFields fields(sized, config.file(), "text_config");
  spec.wrapper->decoder = family_of(wrapper, checkpoint.config(), fields).model_type;
  fields.find("architectures");  // of the decoder alone
  read_decoder(fields, *family, tensors, spec);
  read_token_ids(config, spec);
  const bool tied = config.flag("tie_word_embeddings", false);
  pass_over_repeated(config, *text, checkpoint.config());
  config.refuse_unread(harmless_keys());
  return tied || fields.flag("tie_word_embeddings", false);
}

}  // namespace

void find_carried(const Checkpoint& checkpoint, CarriedSpec& carried) {
  std::vector<std::string> found;
  for (const std::string& part : carried.parts) {
    const auto tensors = tensors_under(checkpoint, part);
    if (tensors.empty()) continue;
    found.push_back(part);
    check_whole(checkpoint, part, 0);
    carried.tensors += static_cast<std::int64_t>(tensors.size());
    for (const StoredTensor& tensor : tensors) {
      carried.parameters += tensor.view.shape.elements();
      carried.bytes += tensor.view.bytes();
    }
  }
  carried.parts = std::move(found);
}

bool read_wrapper(const Checkpoint& checkpoint, const Wrapper& wrapper, ConfigFields& config,
                  ModelSpec& spec) {
  WrapperSpec& around = spec.wrapper.emplace();
  read_architecture(config, wrapper.architecture, wrapper.model_type, spec);
  for (const char* const key : wrapper.image_keys) config.find(key);
  std::vector<TowerParts> towers = {{"vision_config", tower_depth(config, "vision_config"), wrapper.parts}};
  if (const FurtherTower& further = wrapper.further;
      further.config != nullptr && config.find(further.config) != nullptr)
    towers.push_back({further.config, tower_depth(config, further.config), further.parts});
  const bool tied = read_text(checkpoint, wrapper, config, spec);
  spec.family = wrapper.model_type;
  around.prefix = decoder_prefix(checkpoint);
  put_under(around.prefix, spec);
  const auto stored = [&](const char* head) { return !tensors_under(checkpoint, head).empty(); };
  if (stored("language_model.lm_head")) spec.head_module = "language_model.lm_head";
  for (const TowerParts& tower : towers) find_parts(checkpoint, wrapper, tower, spec.carried);
  find_carried(checkpoint, spec.carried);
  if (!wrapper.ties_without_head) return tied;
  const Json* const said = config.find("tie_word_embeddings");
  return !stored(spec.head_module.c_str()) && (said == nullptr || tied);
}

}  // namespace llmq
