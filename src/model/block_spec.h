// One decoder block as data: which linears it has, which input each of them reads, and what makes that input.
//
//   block      sublayers, one after another, each of which adds to the residual stream h
//   sublayer   h += residual_scale * after(mixer(before(h))), with a norm before, after, or both; perhaps a
//              second mixer of the same before(h), whose share is added behind; or what it gives joins that
//              of the next sublayer, and perhaps a norm goes over the sum of both before h grows
//   mixer      attention, attention over latents, a gated delta net, an MLP, a mixture of experts or an
//              embedding of the block's own: it names its linears and its sites
//   site       a distinct input of linears: who reads it, and what it is made of
//
// Outside model/mixers/ nobody asks what kind a mixer is, and outside model/families/ nobody names a linear:
// linears, sites and norms have ids, which are their places in the lists of the block. A family fills all of
// it (model/block_builder.h); it is constant from then on.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "device/backend.h"

namespace llmq {

enum class LinearId : std::int32_t {};  // place in BlockSpec::linears
enum class SiteId : std::int32_t {};    // place in BlockSpec::sites
enum class NormId : std::int32_t {};    // place in BlockSpec::norms
enum class TensorId : std::int32_t {};  // place in BlockSpec::tensors

// Where a matrix or a vector lies in the checkpoint.
struct TensorPlace {
  std::string tensor;  // empty: there is none
  bool exists() const { return !tensor.empty(); }
};

struct LinearSpec {
  LinearId id{};
  std::string module;        // as recipes, adapters, reports and packed outputs name it
  TensorPlace weight, bias;  // dense; packed tensors are named after the module
  std::int64_t out_features = 0, in_features = 0;
  SiteId site{};                    // its input
  std::vector<std::int64_t> parts;  // rows of each of the linears that are stored as this one; at least one
  int rope_heads = 0;  // above 0: rows are heads that rope turns, which a GGUF stores in an order of its own
  bool quantizable =
      true;  // else it stays dense whatever a recipe says, and folds scale it as it is (a router)
  // Parts in even places are multiplied from the other side, y = x W where others give x W^T: what asks for a
  // latent instead of what is made of it (LatentAttentionSpec). Inputs are then never rounded to 8 bits.
  bool absorbed = false;
  bool has_bias() const { return bias.exists(); }
  // Where the rows of a part begin.
  std::int64_t first_row(std::size_t part) const {
    return std::accumulate(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(part), std::int64_t{0});
  }
};

// visit(part, first row, rows) of each of the linears that are stored as this one.
template <class Visit>
void each_part(const LinearSpec& linear, const Visit& visit) {
  for (std::size_t part = 0; part < linear.parts.size(); ++part)
    visit(part, linear.first_row(part), linear.parts[part]);
}

// visit(member, first row, rows) of what each of `members` has of each part.
template <class Visit>
void each_share(const LinearSpec& linear, std::size_t members, const Visit& visit) {
  each_part(linear, [&](std::size_t, std::int64_t first, std::int64_t rows) {
    const std::int64_t count = rows / static_cast<std::int64_t>(members);
    for (std::size_t member = 0; member < members; ++member)
      visit(member, first + static_cast<std::int64_t>(member) * count, count);
  });
}

// Rows of a linear: the whole of it, or one of its parts (q of a stored qkv).
struct Part {
  LinearId linear{};
  std::size_t part = 0;
};

struct NormSpec {
  enum class Kind : std::uint8_t {
    kRms,   // x / sqrt(mean(x^2) + eps) * gain
    kLayer  // (x - mean(x)) / sqrt(var(x) + eps) * gain + bias
  };
  Kind kind = Kind::kRms;
  TensorPlace gain, bias;  // without a gain it multiplies by 1
  std::int64_t width = 0;
  std::int64_t heads = 0;  // above 0: each of so many heads has a gain of its own, [heads, width]
  float eps = 1e-6f;
  float offset = 0;  // x is multiplied by offset + what is stored
  // Of the result: logits that are divided by a number are those of a last norm that is.
  double scale = 1;
  float multiplier(float of_stored) const { return scaled(offset == 0 ? of_stored : offset + of_stored); }
  float stored(float of_multiplier) const {
    const auto unscaled = static_cast<float>(of_multiplier / scale);
    return offset == 0 ? unscaled : unscaled - offset;
  }
  float scaled(float value) const { return static_cast<float>(scale * value); }
  Shape gain_shape() const { return heads > 0 ? Shape{heads, width} : Shape{width}; }
};

// Numbers of a mixer that are neither a linear nor a norm: FP32 while a model runs, never quantized.
struct MixerTensor {
  TensorPlace place;
  Shape shape;              // as it is stored
  bool transposed = false;  // while a model runs, all but the last axis taken as one
  bool on_host = false;     // rather than on the device, while a model runs
  bool by_heads = false;    // one number for each head: members have those of their own heads
};

// What may be divided by s where the columns of all readers are multiplied by it.
struct NormGain {  // and the norm's bias
  NormId norm{};
};
// Channel c comes from row c of the part; of attention, where `repeat` query heads share the values of a KV
// head of head_dim channels, from row c / head_dim / repeat * head_dim + c % head_dim; where other rows stand
// before those of each head, `skipped` of them, that many rows further on for each head up to it.
struct LinearRows {
  Part rows;
  std::int64_t repeat = 1, head_dim = 1, skipped = 0;
  std::int64_t row_of(std::int64_t channel) const {
    const std::int64_t head = channel / head_dim / repeat;
    return head * (skipped + head_dim) + skipped + channel % head_dim;
  }
};
using Producer = std::variant<std::monostate, NormGain, LinearRows>;  // the first: nothing can be divided

struct SiteSpec {
  std::string name;  // "x_attn", "x_o", "x_mlp", "x_down"
  std::int64_t channels = 0;
  std::vector<LinearId> readers;  // all of them, whether they are quantized or not
  Producer producer;
  bool searched = true;  // else no scale is moved that a search by the readers' own error would choose
  bool smoothed = true;  // else none is moved that makes 8-bit inputs easier
};

// What turns queries and keys by their position: a table of the model (ModelSpec::ropes).
struct RopeUse {
  std::size_t table = 0;
  std::int64_t dims = 0;  // channels of a head that turn, from its first on: as many as the table's; 0: none
  RopePairs pairs = RopePairs::kHalves;
  bool of_keys = true;  // else queries alone turn
};

struct AttentionSpec {
  SiteId input{}, inner{};
  Part query, key, value;
  LinearId output{};
  int heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t window = 0;  // 0: full attention; else position p sees p - window + 1 .. p
  bool chunks = false;      // the window begins at its last multiple instead
  float scale = 0;          // of the product of a query and a key; 0: 1 / sqrt(head_dim)
  float softcap = 0;        // of scores: Backend::attention; 0: none
  RopeUse rope;
  std::optional<TensorId> sinks;           // [heads]: scores that have no value
  std::optional<std::size_t> query_table;  // of queries, where it is another than that of keys
  // Before rope: over each head, or over all heads at once where the norm is as wide as they are together.
  // One over each head without a gain may stand behind rope in a model: a turn changes no head's length.
  std::optional<NormId> query_norm, key_norm;
  std::optional<NormId> value_norm;  // over each head of v: no scale of a row passes it
  // Of a block that reads the pages of an earlier one and leaves none: it has no key, no value and no norm
  // of either.
  std::optional<std::size_t> shared_pages;
  bool gated = false;  // `query` has a query and a gate for each head; sigmoid(gate) multiplies what it gives
  bool grouped = false;  // `query`, `key` and `value` are one part: of each KV head queries, key and value
  // What k_proj gives is the value, too, before the norms of both and before rope.
  bool value_is_key() const { return !grouped && value.linear == key.linear && value.part == key.part; }
  std::int64_t inner_width() const { return std::int64_t{heads} * head_dim; }
  std::int64_t query_rows() const { return inner_width() * (gated ? 2 : 1); }
  int queries_of_group() const { return heads / kv_heads; }
  std::int64_t group_rows() const { return std::int64_t{queries_of_group() + 2} * head_dim; }
  // FP32 of a row while it passes: q, k and v, with gates and what they multiply; twice where `grouped`.
  std::int64_t row_floats() const {
    return std::int64_t{(heads * (gated ? 4 : 1) + 2 * kv_heads) * (grouped ? 2 : 1)} * head_dim;
  }
};

// Attention whose keys and values are made of one latent row for each position
// (docs/adr/0025-latent-attention.md):
//
//   c = norm(joint(x)[0 .. rank)),  r = rope(joint(x)[rank ..)),  q = query(norm(narrow(x)))
//   of head h:  K = expand's rows [rank of plain],  V = those [rank of value_dim] behind them
//   score = scale * (q_plain . (K c) + rope(q_turning) . r) = scale * [q_plain K | rope(q_turning)] . [c | r]
//   inner = V (sum of shares * c)
//
// So pages hold [c | r], and every head looks at the same row.
struct LatentAttentionSpec {
  SiteId input{}, latent{}, inner{};
  std::optional<SiteId> queries;     // of `query`, behind `narrow` and a norm; none: it reads `input`
  std::optional<LinearId> narrow;    // and with them
  std::optional<NormId> query_norm;  // of what it gives
  LinearId query{};                  // for each head [plain | turning]
  LinearId joint{};                  // [latent | turning], of all heads
  NormId latent_norm{};
  LinearId expand{};  // absorbed; for each head a part of `plain` rows and one of `value_dim`
  LinearId output{};
  int heads = 0;
  std::int64_t rank = 0, plain = 0, value_dim = 0;
  RopeUse rope;  // of the turning channels, which are rope.dims
  float scale = 0;
  std::int64_t query_dim() const { return plain + rope.dims; }
  std::int64_t row_dim() const { return rank + rope.dims; }
  std::int64_t inner_width() const { return heads * value_dim; }
  // Queries, their plain channels rounded, queries of latents, what they get of them and are given for it;
  // and what `narrow` and `joint` give, with the norms behind them.
  std::int64_t row_floats() const {
    return heads * (query_dim() + plain + 2 * row_dim() + value_dim) + 2 * query_rank + 3 * row_dim();
  }
  std::int64_t query_rank = 0;  // channels of `queries`; 0: there are none
};

// A gated delta net (docs/adr/0023-recurrent-state.md):
//
//   q, k, v = causal_conv(mixed(x));   o = delta_rule(q, k, v, decay(x), share(x))
//   inner = norm(o of each value head) * silu(gate(x))
//
// A row sees those before it by the state that they left, which has one size.
struct DeltaSpec {
  SiteId input{}, inner{};
  // Rows [q | k | v] of all heads, gates, and what makes shares and decays; or, without `gate` and `decay`,
  // for each key head in turn [q | k | v | gate] in `mixed` and [share | decay] in `share`.
  Part mixed, share;
  std::optional<Part> gate, decay;
  LinearId output{};
  NormId norm{};                     // over each value head
  TensorId conv{}, rate{}, shift{};  // [taps, q, k and v] while it runs, and one number for each value head
  DeltaHeads heads;
  std::int64_t taps = 0;  // rows that the convolution sees
  std::int64_t convolved() const { return 2 * heads.keys() + heads.values(); }
  std::int64_t inner_width() const { return heads.values(); }
  // What a sequence leaves: the state of each head, and the rows before the convolution.
  std::uint64_t state_bytes() const {
    return static_cast<std::uint64_t>(heads.state() + (taps - 1) * convolved()) * sizeof(float);
  }
  bool grouped() const { return !gate; }
  // q, k, v before and behind the convolution, gates, what the rule gives, and the two numbers of each head;
  // twice what linears give where it has to be put in order.
  std::int64_t row_floats() const {
    return (grouped() ? 3 : 2) * convolved() + (grouped() ? 3 : 2) * heads.values() + 4 * heads.value_heads;
  }
};

struct MlpSpec {
  SiteId input{}, inner{};
  std::optional<Part> gate;  // act(gate) * up; without one act(up)
  Part up;
  LinearId output{};
  std::int64_t width = 0;
  Activation activation = Activation::kSilu;
  std::int64_t inner_width() const { return width; }
  std::int64_t row_floats() const { return 2 * width; }  // gate and up
};

// What the rows that come to it pass: act(gate) * up, and the linear behind.
struct ExpertSpec {
  Part gate, up;
  LinearId output{};
  SiteId inner{};
  std::array<LinearId, 3> linears() const { return {gate.linear, up.linear, output}; }
};

// What a router's answers are made to before experts are chosen by them; or, of those chosen by the answers
// as they are, behind it.
enum class RouterScore : std::uint8_t { kSoftmax, kSigmoid, kSigmoidOfChosen };

// A mixture of experts (docs/adr/0020-mixture-of-experts.md). A row goes to the top_k experts of the greatest
// score(router), and those scores weigh what they give; `shared` is an expert of all rows, weighed by
// sigmoid(shared_gate) or not at all. No linear is its only output: what it gives is added to the residual
// stream.
struct MixtureSpec {
  SiteId input{};
  LinearId router{};
  // The router reads this norm of the residual stream, a site of its own, and not what the experts read.
  std::optional<NormId> router_norm;
  std::vector<ExpertSpec> experts;
  int top_k = 0;
  RouterScore score = RouterScore::kSoftmax;
  std::optional<TensorId> correction;  // is added to the scores that experts are chosen by, and weighs none
  // Experts are chosen among those of the kept_groups groups whose group_best greatest scores are the
  // greatest together; groups are equally many experts each, one behind another.
  int groups = 1, kept_groups = 1, group_best = 2;
  bool normalized = false;                // the weights of a row's experts are divided by their sum
  double weight_scale = 1;                // of the weights, then
  std::optional<TensorId> expert_scales;  // of the weights by their expert, at last
  bool weighs_input = false;              // a weight multiplies what its expert reads, not what it gives
  std::int64_t width = 0;                 // of each of the experts
  std::optional<ExpertSpec> shared;
  std::optional<LinearId> shared_gate;
  std::int64_t shared_width = 0;
  Activation activation = Activation::kSilu;
  std::int64_t hidden = 0;                // of what it gives
  std::vector<LinearId> linears() const;  // all of them
  std::int64_t inner_width() const { return hidden; }
  // A row once for each of its experts: what they read, in FP32 and rounded, gate, up, their product and
  // what they give; then for the shared one.
  std::int64_t row_floats() const {
    return top_k * (3 * hidden + 3 * width) + hidden + 3 * shared_width +
           static_cast<std::int64_t>(experts.size());
  }
};

// inner = act(gate(x)) * e, where e is what the block has of an embedding of all blocks
// (ModelSpec::block_embedding).
struct EmbeddedSpec {
  SiteId input{}, inner{};
  Part gate;
  LinearId output{};
  std::int64_t width = 0;
  Activation activation = Activation::kSilu;
  std::int64_t inner_width() const { return width; }
  std::int64_t row_floats() const { return width; }
};

using MixerSpec =
    std::variant<AttentionSpec, MlpSpec, MixtureSpec, DeltaSpec, EmbeddedSpec, LatentAttentionSpec>;

struct SublayerSpec {
  std::optional<NormId> before;  // none: the mixer reads the residual stream as it is
  MixerSpec mixer;
  std::optional<MixerSpec> beside;  // reads what `mixer` reads: there is no norm behind either of them
  std::optional<NormId> after;      // of the mixer's output
  std::vector<SiteId> sites;        // in the order in which they arise
  float residual_scale = 1;         // of what is added to the residual stream
  // What it gives is not added to the residual stream but to what the next sublayer gives, which runs it.
  bool joins_next = false;
  bool joined = false;                  // the sublayer before it joins it
  std::optional<NormId> joint = {};     // of that sum, in the sublayer that is joined; none: as it is
  std::optional<TensorId> factor = {};  // one number, by which the residual stream is multiplied behind it
  // Whether what h grows by is another thing than what one output linear gives.
  bool shares_what_is_added() const { return after || beside || joins_next || joined; }
  // FP32 of a row while it passes whichever mixer takes more.
  std::int64_t row_floats() const;
  // Whether rows see those before them: by way of pages, or by a state.
  bool has_pages() const {
    return std::holds_alternative<AttentionSpec>(mixer) || std::holds_alternative<LatentAttentionSpec>(mixer);
  }
  bool has_state() const { return std::holds_alternative<DeltaSpec>(mixer); }
  // The sites between the first and the last that are inputs of all rows; none where there is no output.
  std::span<const SiteId> sites_between() const;
  // The linears that give what is added, one for each mixer; none where the mixer itself does.
  std::vector<LinearId> outputs() const;
  bool is_output(LinearId id) const;
  // Whether it reads one of its sites and gives nothing that is added.
  bool reads_before_outputs(const LinearSpec& linear) const;
};

// Of a mixer: the channels that it gives (the input of its output linear, or what is added), FP32 of a row
// while it passes, and that linear.
std::int64_t inner_width_of(const MixerSpec& mixer);
std::int64_t row_floats_of(const MixerSpec& mixer);
std::optional<LinearId> output_of(const MixerSpec& mixer);

// What attention of any kind asks of a device.
struct AttentionSizes {
  int heads = 0, kv_heads = 0;
  std::int64_t head_dim = 0, window = 0;
  std::int64_t width() const { return heads * head_dim; }  // of queries of keys as they lie in pages
};

// What every position of a block leaves for those behind it.
struct PagesSpec {
  int kv_heads = 0, head_dim = 0;
  std::int64_t window = 0;
  bool chunks = false;
};

struct BlockSpec {
  std::string prefix;  // "model.layers.3"
  std::vector<LinearSpec> linears;
  std::vector<SiteSpec> sites;
  std::vector<NormSpec> norms;
  std::vector<MixerTensor> tensors;
  std::vector<SublayerSpec> sublayers;
  PagesSpec pages;  // of no heads where it leaves none

  const LinearSpec& at(LinearId id) const { return linears.at(static_cast<std::size_t>(id)); }
  const SiteSpec& at(SiteId id) const { return sites.at(static_cast<std::size_t>(id)); }
  const NormSpec& at(NormId id) const { return norms.at(static_cast<std::size_t>(id)); }
  const MixerTensor& at(TensorId id) const { return tensors.at(static_cast<std::size_t>(id)); }
  // Which sublayer has this site, by its place and itself.
  std::size_t part_of(SiteId site) const;
  bool writes_pages(std::size_t part) const;  // where this sublayer is run, be it by one that joins it
  const SublayerSpec& sublayer_of(SiteId site) const { return sublayers[part_of(site)]; }
  // Null where no sublayer has one.
  const AttentionSpec* attention() const;
  const MlpSpec* mlp() const;
  const MixtureSpec* mixture() const;
  const DeltaSpec* delta() const;
  const EmbeddedSpec* embedded() const;
  const LatentAttentionSpec* latent_attention() const;
  std::optional<AttentionSizes> attention_sizes() const;  // of whichever leaves pages
  // The share of a linear's weight that a step of so many rows reads, on the average over those like it, at
  // most: all of it, but for experts, of which no more are asked for than the rows have together.
  double share_read(LinearId id, std::int64_t rows) const;
};

}  // namespace llmq
