#include "model/adapters/lora_adapter.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/checked.h"
#include "base/error.h"
#include "base/pattern.h"
#include "model/config_fields.h"

namespace llmq {
namespace {

constexpr const char* kConfig = "adapter_config.json";
constexpr const char* kTensors = "adapter_model.safetensors";
constexpr const char* kPrefix = "base_model.model.";
constexpr IntegerRange kRankRange{1, 1024};
constexpr NumberRange kAlphaRange{-1e6, 1e6};
constexpr std::uint64_t kMostConfigBytes = 1 << 20;
constexpr std::size_t kMostPatterns = 4096;

// How the adapter was trained and what it was trained on; nothing of it changes what the matrices mean.
const std::set<std::string_view> kHarmless = {"auto_mapping",      "base_model_name_or_path",
                                              "corda_config",      "ensure_weight_tying",
                                              "eva_config",        "exclude_modules",
                                              "fan_in_fan_out",    "inference_mode",
                                              "layers_pattern",    "layers_to_transform",
                                              "loftq_config",      "lora_dropout",
                                              "megatron_core",     "peft_version",
                                              "qalora_group_size", "revision",
                                              "task_type",         "runtime_config"};

// Fields that say how the matrices come to be applied.
struct Asked {
  std::int64_t rank = 0;
  double alpha = 0;
  bool rank_stabilized = false;
  std::vector<std::pair<NamePattern, std::int64_t>> ranks;
  std::vector<std::pair<NamePattern, double>> alphas;
  std::vector<std::string> targets;  // names; empty where the tensors alone say it
  bool every_target = false;         // each linear that is named must be there
};

// PEFT matches a key against the end of a module's name, as a regular expression.
NamePattern pattern_of(const ConfigFields& fields, const std::string& field, const std::string& key) {
  try {
    return NamePattern("re:(?:.*\\.)?(?:" + key + ")$");
  } catch (const Error&) {
    fields.bad(field, "the key '" + key + "' is no regular expression that is understood here");
  }
}

template <typename Value, typename Read>
std::vector<std::pair<NamePattern, Value>> read_patterns(ConfigFields& fields, const char* key,
                                                         const Read& read) {
  std::vector<std::pair<NamePattern, Value>> found;
  const Json* patterns = fields.find(key);
  if (patterns == nullptr) return found;
  if (!patterns->is_object()) fields.bad(key, fmt::format("expected an object, found {}", patterns->kind()));
  if (patterns->members().size() > kMostPatterns)
    fields.bad(key,
               fmt::format("holds {} patterns, more than {}", patterns->members().size(), kMostPatterns));
  ConfigFields inner(*patterns, fields.file(), key);
  for (const Json::Member& member : patterns->members())
    found.emplace_back(pattern_of(fields, key, member.first), read(inner, member.first));
  return found;
}

void read_targets(ConfigFields& fields, const Json& config, Asked& asked) {
  const Json* targets = fields.find("target_modules");
  if (targets == nullptr || targets->is_string()) return;  // a pattern: the tensors say what it matched
  if (!targets->is_array())
    fields.bad("target_modules", fmt::format("expected a list of names, found {}", targets->kind()));
  for (const Json& one : targets->items()) {
    if (!one.is_string()) fields.bad("target_modules", fmt::format("expected names, found {}", one.kind()));
    asked.targets.push_back(one.as_string());
  }
  if (asked.targets.size() > kMostPatterns)
    fields.bad("target_modules",
               fmt::format("names {} modules, more than {}", asked.targets.size(), kMostPatterns));
  const auto absent = [&](const char* key) {
    return config.find(key) == nullptr || config.find(key)->is_null();
  };
  asked.every_target = absent("layers_to_transform") && absent("exclude_modules");
}

// Initialisations that leave the base model as it is; the others subtract from it what they put into the
// adapter.
void check_initialisation(ConfigFields& fields) {
  const Json* way = fields.find("init_lora_weights");
  if (way == nullptr || way->is_bool()) return;
  if (way->is_string() &&
      (way->as_string() == "gaussian" || way->as_string() == "eva" || way->as_string() == "orthogonal"))
    return;
  fields.unsupported("init_lora_weights",
                     way->is_string() ? fmt::format("'{}' changes the base model, too", way->as_string())
                                      : fmt::format("is {}", way->kind()),
                     "convert the adapter to a plain LoRA (PEFT: path_initial_model_for_weight_conversion)");
}

Asked read_config(const Json& config, const std::string& file) {
  if (!config.is_object())
    fail(ErrorKind::kBadInput, {fmt::format("expected an object, found {}", config.kind()),
                                file,
                                {},
                                "give the directory that PEFT saved"});
  ConfigFields fields(config, file, "");
  if (const std::string type = fields.text("peft_type"); type != "LORA")
    fields.unsupported("peft_type", "'" + type + "' is not carried out", "only LORA adapters are");
  Asked asked;
  asked.rank = fields.integer("r", kRankRange);
  asked.alpha = fields.number("lora_alpha", kAlphaRange);
  asked.rank_stabilized = fields.flag("use_rslora", false);
  asked.ranks = read_patterns<std::int64_t>(
      fields, "rank_pattern",
      [](ConfigFields& inner, const std::string& key) { return inner.integer(key, kRankRange); });
  asked.alphas = read_patterns<double>(
      fields, "alpha_pattern",
      [](ConfigFields& inner, const std::string& key) { return inner.number(key, kAlphaRange); });
  read_targets(fields, config, asked);
  check_initialisation(fields);
  for (const char* key : {"use_dora", "lora_bias", "use_qalora", "use_bdlora", "monteclora_config"})
    fields.require_neutral(key, false);
  fields.require_neutral("bias", "none");
  for (const char* key : {"modules_to_save", "target_parameters", "trainable_token_indices",
                          "layer_replication", "alora_invocation_tokens"})
    fields.require_neutral(key, Json::array());
  for (const char* key : {"arrow_config", "megatron_config"}) fields.require_neutral(key, nullptr);
  fields.refuse_unread(kHarmless);
  return asked;
}

template <typename Value>
Value chosen(const std::vector<std::pair<NamePattern, Value>>& patterns, const std::string& module,
             Value otherwise) {
  for (const auto& entry : patterns)
    if (entry.first.matches(module)) return entry.second;
  return otherwise;
}

bool named(const Asked& asked, const std::string& module) {
  return std::any_of(asked.targets.begin(), asked.targets.end(), [&](const std::string& target) {
    return module == target || module.ends_with("." + target);
  });
}

std::string tensor_name(const std::string& module, const char* matrix) {
  return kPrefix + module + "." + matrix + ".weight";
}

std::vector<float> read_finite(const Checkpoint& tensors, const StoredTensor& tensor) {
  std::vector<float> values = tensors.read_float32(tensor);
  tensors.release(tensor);
  const auto wrong =
      std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
  if (wrong != values.end())
    fail(ErrorKind::kBadInput, {fmt::format("holds {} at element {}", *wrong, wrong - values.begin()),
                                tensors.shards().front().string(), tensor.name,
                                "the adapter is damaged, or its training diverged"});
  return values;
}

void check_matrix(const Checkpoint& tensors, const StoredTensor& tensor, const Shape& expected) {
  const std::string file = tensors.shards().front().string();
  const DType dtype = tensor.view.dtype;
  if (dtype != DType::kF32 && dtype != DType::kBF16 && dtype != DType::kF16)
    fail(ErrorKind::kUnsupported, {fmt::format("has type {}", dtype_row(dtype).name), file, tensor.name,
                                   "matrices of an adapter are F32, BF16 or F16"});
  if (tensor.view.shape != expected)
    fail(ErrorKind::kBadInput, {fmt::format("has shape {}, expected {} by {} and the model",
                                            tensor.view.shape.text(), expected.text(), kConfig),
                                file, tensor.name, "is the adapter of this model?"});
  read_finite(tensors, tensor);
}

Path present(Io& io, const Path& directory, const char* name, const char* hint) {
  if (!io.exists(directory))
    fail(ErrorKind::kBadInput,
         {"no such directory", directory.string(), {}, "give the directory that PEFT saved the adapter in"});
  Path file = directory / name;
  if (!io.exists(file))
    fail(ErrorKind::kBadInput,
         {fmt::format("the directory holds no {}", name), directory.string(), {}, hint});
  return file;
}

}  // namespace

LoraAdapter LoraAdapter::open(Io& io, const Path& directory, const ModelSpec& spec) {
  const std::vector<Path> both = files(io, directory);
  const Path &config = both.front(), &weights = both.back();
  const Asked asked =
      read_config(Json::parse(read_text(io, config, kMostConfigBytes), config.string()), config.string());
  LoraAdapter adapter;
  adapter.directory_ = directory;
  adapter.config_bytes_ = round_up(io.open(config)->size(), kIoBlock);
  adapter.tensors_ = Checkpoint::open_shards(io, directory, {weights}, Json());
  const auto refuse = [&](ErrorKind kind, const std::string& message, const std::string& where,
                          const std::string& hint) {
    fail(kind, {message, weights.string(), where, hint});
  };
  std::size_t understood = 0;
  for (std::size_t block = 0; block < spec.blocks.size(); ++block) {
    adapter.places_.emplace_back(spec.blocks[block].linears.size());
    for (const LinearSpec& linear : spec.blocks[block].linears) {
      const std::string a = tensor_name(linear.module, "lora_A"), b = tensor_name(linear.module, "lora_B");
      const StoredTensor *down = adapter.tensors_.find(a), *up = adapter.tensors_.find(b);
      const bool wanted = named(asked, linear.module);
      if (down == nullptr && up == nullptr) {
        if (wanted && asked.every_target)
          refuse(ErrorKind::kBadInput,
                 fmt::format("is missing, though target_modules of {} names its linear", kConfig), a,
                 "is the file whole?");
        continue;
      }
      if (down == nullptr || up == nullptr)
        refuse(ErrorKind::kBadInput, "is missing beside its other half", down == nullptr ? a : b,
               "is the file whole?");
      if (!asked.targets.empty() && !wanted)
        refuse(ErrorKind::kBadInput,
               fmt::format("is of a linear that target_modules of {} does not name", kConfig), a, {});
      Place place{linear.module, chosen(asked.ranks, linear.module, asked.rank), 0};
      const double alpha = chosen(asked.alphas, linear.module, asked.alpha),
                   rank = static_cast<double>(place.rank);
      place.scale = static_cast<float>(alpha / (asked.rank_stabilized ? std::sqrt(rank) : rank));
      check_matrix(adapter.tensors_, *down, {place.rank, linear.in_features});
      check_matrix(adapter.tensors_, *up, {linear.out_features, place.rank});
      adapter.places_[block][static_cast<std::size_t>(linear.id)] = std::move(place);
      understood += 2;
    }
  }
  if (understood == adapter.tensors_.tensors().size() && understood > 0) return adapter;
  for (const StoredTensor& tensor : adapter.tensors_.tensors()) {
    const std::string& name = tensor.name;
    const bool ours = std::any_of(adapter.places_.begin(), adapter.places_.end(), [&](const auto& block) {
      return std::any_of(block.begin(), block.end(), [&](const std::optional<Place>& place) {
        return place &&
               (name == tensor_name(place->module, "lora_A") || name == tensor_name(place->module, "lora_B"));
      });
    });
    if (!ours)
      refuse(ErrorKind::kUnsupported, "is no LoRA matrix of a linear in the model's blocks", name,
             "is the adapter of this model? Other modules are not carried out");
  }
  refuse(ErrorKind::kBadInput, "holds no matrix", {}, "is the file whole?");
  return adapter;
}

LoraPair LoraAdapter::pair(std::size_t block, LinearId linear) const {
  const Place& place = places_.at(block)[static_cast<std::size_t>(linear)].value();
  const StoredTensor &down = tensors_.at(tensor_name(place.module, "lora_A")),
                     &up = tensors_.at(tensor_name(place.module, "lora_B"));
  return {place.rank,
          up.view.shape[0],
          down.view.shape[1],
          place.scale,
          read_finite(tensors_, down),
          read_finite(tensors_, up)};
}

std::size_t LoraAdapter::linears() const {
  std::size_t count = 0;
  for (const auto& block : places_)
    for (const std::optional<Place>& place : block) count += place.has_value();
  return count;
}

std::int64_t LoraAdapter::rank() const {
  std::int64_t largest = 0;
  for (const auto& block : places_)
    for (const std::optional<Place>& place : block)
      if (place) largest = std::max(largest, place->rank);
  return largest;
}

std::int64_t LoraAdapter::values() const {
  std::int64_t sum = 0;
  for (const StoredTensor& tensor : tensors_.tensors()) sum += tensor.view.shape[0] * tensor.view.shape[1];
  return sum;
}

std::uint64_t LoraAdapter::bytes_of_opening() const {
  std::uint64_t bytes = config_bytes_ + tensors_.header_bytes();
  for (const StoredTensor& tensor : tensors_.tensors()) bytes += Checkpoint::bytes_to_read(tensor);
  return bytes;
}

LoraAdapter::PairBytes LoraAdapter::bytes_of_pair(std::size_t block, LinearId linear) const {
  const Place& place = places_.at(block)[static_cast<std::size_t>(linear)].value();
  PairBytes bytes;
  for (const char* matrix : {"lora_A", "lora_B"}) {
    const StoredTensor& tensor = tensors_.at(tensor_name(place.module, matrix));
    const std::uint64_t kept = Checkpoint::bytes_kept(tensor);
    bytes.kept += kept;
    bytes.read += Checkpoint::bytes_to_read(tensor) - kept;
  }
  return bytes;
}

std::vector<Path> LoraAdapter::files(Io& io, const Path& directory) {
  return {present(io, directory, kConfig, "give the directory that PEFT saved the adapter in"),
          present(io, directory, kTensors,
                  "save the adapter as safetensors; pickled weights (adapter_model.bin) are never opened")};
}

void add_lora_rows(const LoraPair& pair, std::int64_t first, std::span<float> rows, ThreadPool& pool) {
  const auto width = static_cast<std::size_t>(pair.in_features), rank = static_cast<std::size_t>(pair.rank);
  pool.parallel_for(rows.size() / width, [&](std::size_t row, int) {
    std::vector<float> change(width);
    const float* up = pair.up.data() + (static_cast<std::size_t>(first) + row) * rank;
    for (std::size_t k = 0; k < rank; ++k) {
      const float factor = up[k];
      const float* down = pair.down.data() + k * width;
      for (std::size_t i = 0; i < width; ++i) change[i] += factor * down[i];
    }
    float* into = rows.data() + row * width;
    for (std::size_t i = 0; i < width; ++i) into[i] += pair.scale * change[i];
  });
}

}  // namespace llmq
