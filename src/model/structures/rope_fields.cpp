// rope_theta, rope_scaling and rope_parameters -> RopeSpec, as Transformers' convert_rope_params_to_dict and
// standardize_rope_params read them: rope_scaling of Transformers 4 (with `type` or `rope_type`) and
// rope_parameters of Transformers 5 say the same thing.
//
// Where the two disagree, or a kind carries a key that it does not use, the config is refused rather than
// guessed at.
#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/error.h"
#include "model/families/family.h"

namespace llmq {
namespace {

constexpr NumberRange kThetaRange{1.0000001, 1e18};  // log(theta) divides
constexpr NumberRange kFactorRange{1e-3, 1e6};
constexpr NumberRange kPositiveRange{1e-6, 1e9};

RopeKind read_kind(ConfigFields& rope) {
  const Json* type = rope.find("type");
  const Json* rope_type = rope.find("rope_type");
  if (type != nullptr && rope_type != nullptr && !(*type == *rope_type))
    rope.unsupported("rope_type", fmt::format("is {} while type is {}", rope_type->dump(), type->dump()),
                     "give one of them");
  const std::string kind = rope.text(rope_type != nullptr ? "rope_type" : "type", "default");
  if (kind == "default") return RopeKind::kDefault;
  if (kind == "linear") return RopeKind::kLinear;
  if (kind == "dynamic") return RopeKind::kDynamic;
  if (kind == "yarn") return RopeKind::kYarn;
  if (kind == "llama3") return RopeKind::kLlama3;
  if (kind == "proportional") return RopeKind::kProportional;
  if (kind == "longrope" || kind == "su") return RopeKind::kLongRope;  // su: Phi-3's first name for it
  rope.unsupported(rope_type != nullptr ? "rope_type" : "type",
                   fmt::format("is \"{}\", a rope scaling that is not known here", kind),
                   "default, linear, dynamic, yarn, llama3, longrope and proportional are");
}

void read_yarn(ConfigFields& rope, RopeSpec& spec, std::int64_t max_position) {
  if (rope.find("factor") != nullptr)
    spec.factor = rope.number("factor", kFactorRange);
  else if (rope.is_null("factor"))
    spec.factor = static_cast<double>(max_position) / static_cast<double>(spec.original_max_position);
  else
    rope.bad("factor", "is missing", "yarn needs it");
  // Zero and null mean "not given" to Transformers for all of these but attention_factor.
  spec.beta_fast = rope.number("beta_fast", {0, 1e9}, 32);
  spec.beta_slow = rope.number("beta_slow", {0, 1e9}, 1);
  if (spec.beta_fast == 0) spec.beta_fast = 32;
  if (spec.beta_slow == 0) spec.beta_slow = 1;
  spec.mscale = rope.number("mscale", {0, 1e6}, 0);
  spec.mscale_all_dim = rope.number("mscale_all_dim", {0, 1e6}, 0);
  spec.attention_factor = rope.number("attention_factor", kPositiveRange, 0);
  spec.truncate = rope.flag("truncate", true);
}

void read_llama3(ConfigFields& rope, RopeSpec& spec) {
  spec.factor = rope.number("factor", kFactorRange);
  spec.low_freq_factor = rope.number("low_freq_factor", kPositiveRange);
  spec.high_freq_factor = rope.number("high_freq_factor", kPositiveRange);
  if (spec.high_freq_factor < spec.low_freq_factor)
    rope.bad("high_freq_factor", fmt::format("is {}, below low_freq_factor, which is {}",
                                             spec.high_freq_factor, spec.low_freq_factor));
}

// One factor for each angle, for contexts up to the length that was trained first and for longer ones.
std::vector<double> read_factors(ConfigFields& rope, const char* key, std::size_t angles) {
  const Json* list = rope.find(key);
  if (list == nullptr || !list->is_array() || list->items().size() != angles)
    rope.bad(key, fmt::format("is no list of {} factors", angles), "longrope needs one for each angle");
  std::vector<double> factors;
  for (const Json& item : list->items()) {
    const double factor = item.is_number() ? item.as_double() : 0;
    if (!(factor >= kFactorRange.least && factor <= kFactorRange.most))
      rope.bad(key, fmt::format("holds {}, which is no factor", item.dump()));
    factors.push_back(factor);
  }
  return factors;
}

void read_longrope(ConfigFields& rope, RopeSpec& spec, std::int64_t max_position) {
  spec.short_factors = read_factors(rope, "short_factor", static_cast<std::size_t>(spec.dims / 2));
  spec.long_factors = read_factors(rope, "long_factor", static_cast<std::size_t>(spec.dims / 2));
  spec.factor =
      rope.number("factor", kFactorRange,
                  static_cast<double>(max_position) / static_cast<double>(spec.original_max_position));
  spec.attention_factor = rope.number("attention_factor", kPositiveRange, 0);
}

RopeSpec read_kind_and_factors(ConfigFields& rope, ConfigFields& config, double theta,
                               std::int64_t max_position) {
  RopeSpec spec;
  spec.theta = theta;
  spec.kind = read_kind(rope);
  spec.original_max_position = max_position;
  if (spec.kind == RopeKind::kYarn || spec.kind == RopeKind::kLlama3 || spec.kind == RopeKind::kLongRope) {
    // A value beside the rope dictionary wins over the one inside it, as in Transformers.
    constexpr const char* kOriginal = "original_max_position_embeddings";
    spec.original_max_position = rope.integer(kOriginal, kPositionsRange, max_position);
    spec.original_max_position = config.integer(kOriginal, kPositionsRange, spec.original_max_position);
  }
  switch (spec.kind) {
    case RopeKind::kDefault:
      break;
    case RopeKind::kProportional:
      spec.factor = rope.number("factor", kFactorRange, 1);
      break;
    case RopeKind::kLinear:
    case RopeKind::kDynamic:
      spec.factor = rope.number("factor", kFactorRange);
      break;
    case RopeKind::kYarn:
      read_yarn(rope, spec, max_position);
      break;
    case RopeKind::kLlama3:
      read_llama3(rope, spec);
      break;
    case RopeKind::kLongRope:  // by read_longrope(), which asks how many channels turn
      break;
  }
  return spec;
}

// Channels of a head that turn, as Transformers has them: int(head_dim * share).
std::int64_t turning(const ConfigFields& config, std::int64_t head_dim, double share) {
  const auto dims = static_cast<std::int64_t>(static_cast<double>(head_dim) * share);
  if (dims < 2 || dims % 2 != 0)
    config.bad("partial_rotary_factor",
               fmt::format("lets {} of {} channels turn; rope turns pairs", dims, head_dim));
  return dims;
}

RopeSpec plain_rope(std::int64_t dims, double theta, std::int64_t max_position) {
  RopeSpec spec;
  spec.dims = dims;
  spec.theta = theta;
  spec.original_max_position = max_position;
  return spec;
}

// By how much queries grow with every length that was trained first, which stands beside it for any kind of
// rope; and a key that says what the config says.
void read_growth(ConfigFields& rope, ConfigFields& config, std::int64_t max_position, RopeSpec& spec) {
  constexpr const char* kBeta = "llama_4_scaling_beta";
  constexpr const char* kOriginal = "original_max_position_embeddings";
  rope.require_neutral("max_position_embeddings", max_position);
  spec.growth = rope.number(kBeta, {0, 1e3}, 0);
  if (spec.growth == 0) return;
  if (rope.find(kOriginal) == nullptr && config.find(kOriginal) == nullptr)
    rope.bad(kOriginal, "is missing", fmt::format("{} counts in it", kBeta));
  spec.original_max_position = rope.integer(kOriginal, kPositionsRange, max_position);
  spec.original_max_position = config.integer(kOriginal, kPositionsRange, spec.original_max_position);
  spec.growth_length = spec.original_max_position;
}

// As Transformers has them: int(share * head_dim // 2).
std::int64_t proportional_angles(double share, std::int64_t head_dim) {
  return static_cast<std::int64_t>(share * static_cast<double>(head_dim) / 2);
}

// Of an object, all of whose keys are read.
RopeSpec read_table(ConfigFields& rope, ConfigFields& config, double theta, std::int64_t max_position,
                    std::int64_t dims) {
  RopeSpec spec = read_kind_and_factors(rope, config, theta, max_position);
  spec.dims = dims;
  if (spec.kind == RopeKind::kLongRope) read_longrope(rope, spec, max_position);
  if (spec.kind == RopeKind::kProportional)
    spec.angles = proportional_angles(rope.number("partial_rotary_factor", {0, 1}, 1), dims);
  rope.refuse_unread({"finetuned"});  // a remark in YaRN's own releases, read by nobody
  return spec;
}

RopeSpec read_kind_of_block(ConfigFields& kinds, ConfigFields& config, const char* kind,
                            std::int64_t max_position, std::int64_t head_dim, double theta) {
  const Json* of_kind = kinds.find(kind);
  const Json none = Json::object();
  ConfigFields rope(of_kind != nullptr ? *of_kind : none, config.file(),
                    fmt::format("rope_parameters.{}", kind));
  if (rope.text("rope_type", "default") != "proportional") rope.require_neutral("partial_rotary_factor", 1);
  const double own = rope.number("rope_theta", kThetaRange, theta);
  return read_table(rope, config, own, max_position, head_dim);
}

bool holds_nothing(const Json* object) {
  return object == nullptr || (object->is_object() && object->members().empty());
}

}  // namespace

RopeSpec read_rope(ConfigFields& config, std::int64_t max_position, std::int64_t head_dim,
                   const RopeDefaults& defaults) {
  const Json* scaling = config.find("rope_scaling");
  const Json* parameters = config.find("rope_parameters");
  if (holds_nothing(scaling)) scaling = nullptr;
  if (holds_nothing(parameters)) parameters = nullptr;
  if (scaling != nullptr && parameters != nullptr && !(*scaling == *parameters))
    config.bad("rope_scaling", "differs from rope_parameters", "keep one of the two");

  const bool outside = config.find("rope_theta") != nullptr;
  const double theta = config.number("rope_theta", kThetaRange, defaults.theta);
  const Json* chosen = scaling != nullptr ? scaling : parameters;
  const double share = defaults.partial ? config.number("partial_rotary_factor", {0, 1}, defaults.share) : 1;
  if (chosen == nullptr) return plain_rope(turning(config, head_dim, share), theta, max_position);
  ConfigFields rope(*chosen, config.file(),
                    config.place(scaling != nullptr ? "rope_scaling" : "rope_parameters"));
  const double inside = rope.number("rope_theta", kThetaRange, theta);
  if (outside && inside != theta)
    rope.bad("rope_theta", fmt::format("is {}, the config's own rope_theta is {}", inside, theta),
             "keep one of the two");
  const double share_inside = defaults.partial ? rope.number("partial_rotary_factor", {0, 1}, share) : 1;
  if (!defaults.partial) rope.require_neutral("partial_rotary_factor", 1);
  RopeSpec grown;
  if (defaults.growth) read_growth(rope, config, max_position, grown);
  RopeSpec spec = read_table(rope, config, inside, max_position, turning(config, head_dim, share_inside));
  if (spec.kind == RopeKind::kProportional)
    rope.unsupported("rope_type", "is proportional, which this family does not know");
  if (spec.growth = grown.growth; spec.growth != 0) {
    spec.original_max_position = grown.original_max_position;
    spec.growth_length = grown.growth_length;
  }
  return spec;
}

std::vector<RopeSpec> read_ropes_by_attention(ConfigFields& config, std::int64_t max_position,
                                              std::int64_t head_dim, double default_theta,
                                              const std::optional<WindowTheta>& of_window) {
  constexpr const char* kKinds[] = {"full_attention", "sliding_attention"};
  const Json* parameters = config.find("rope_parameters");
  const bool by_kind = parameters != nullptr && parameters->is_object() &&
                       std::any_of(std::begin(kKinds), std::end(kKinds),
                                   [&](const char* kind) { return parameters->find(kind) != nullptr; });
  std::vector<RopeSpec> ropes;
  std::optional<double> window_theta;
  if (of_window) window_theta = config.number(of_window->key, kThetaRange, of_window->absent);
  if (!by_kind) {
    ropes.push_back(read_rope(config, max_position, head_dim, {.theta = default_theta}));
    ropes.push_back(plain_rope(head_dim, window_theta.value_or(ropes.front().theta), max_position));
    return ropes;
  }
  const double theta = config.number("rope_theta", kThetaRange, default_theta);
  if (config.find("rope_scaling") != nullptr)
    config.bad("rope_scaling", "stands beside rope_parameters", "keep one of the two");
  ConfigFields kinds(*parameters, config.file(), "rope_parameters");
  for (const char* kind : kKinds) {
    const double absent = ropes.empty() ? theta : window_theta.value_or(theta);
    ropes.push_back(read_kind_of_block(kinds, config, kind, max_position, head_dim, absent));
  }
  kinds.refuse_unread({});
  return ropes;
}

std::vector<RopeSpec> read_ropes_of_heads(ConfigFields& config, std::int64_t max_position,
                                          const std::array<KindOfRope, 2>& kinds) {
  const Json* parameters = config.find("rope_parameters");
  std::vector<RopeSpec> ropes;
  if (parameters == nullptr) {
    for (const KindOfRope& kind : kinds) {
      RopeSpec& spec = ropes.emplace_back(plain_rope(kind.head_dim, kind.theta, max_position));
      if (!kind.share) continue;
      spec.kind = RopeKind::kProportional;
      spec.angles = proportional_angles(*kind.share, kind.head_dim);
    }
    return ropes;
  }
  ConfigFields fields(*parameters, config.file(), "rope_parameters");
  for (const KindOfRope& kind : kinds) {
    if (fields.find(kind.name) == nullptr)
      fields.bad(kind.name, "is missing", "each kind of block has its rope there");
    ropes.push_back(read_kind_of_block(fields, config, kind.name, max_position, kind.head_dim, kind.theta));
  }
  fields.refuse_unread({});
  return ropes;
}

}  // namespace llmq
