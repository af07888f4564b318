#include "quant/pipeline/imatrix_collection.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "base/half.h"
#include "base/threads.h"
#include "calibration/joined_sums.h"
#include "model/gguf/gguf_names.h"
#include "quant/pipeline/activation_stream.h"

namespace llmq {
namespace {

constexpr std::size_t kColumnsPerItem = 256;

// Sums of squares by channel, of inputs of one width: of each chunk in FP64, of all without an order.
class SquareSums {
 public:
  // `host`: where rows are downloaded to, which sums of one device share.
  SquareSums(Backend& backend, std::vector<std::byte>& host, std::size_t inputs, std::int64_t columns)
      : backend_(backend),
        host_(host),
        columns_(static_cast<std::size_t>(columns)),
        sums_(inputs * columns_),
        tokens_(inputs) {}

  void add(std::size_t input, const TensorView& x) {
    const auto rows = static_cast<std::size_t>(x.rows()), columns = static_cast<std::size_t>(x.cols());
    host_.resize(static_cast<std::size_t>(x.bytes()));
    backend_.download(host_.data(), x);
    std::vector<double> squares(columns);
    const bool half = x.dtype == DType::kBF16;
    const std::size_t items = (columns + kColumnsPerItem - 1) / kColumnsPerItem;
    backend_.workers().parallel_for(items, [&](std::size_t item, int) {
      const std::size_t first = item * kColumnsPerItem, last = std::min(columns, first + kColumnsPerItem);
      for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t k = first; k < last; ++k) {
          const auto value =
              static_cast<double>(half ? bfloat16_at(r * columns + k) : float_at(r * columns + k));
          squares[k] += value * value;
        }
    });
    sums_.add(input * columns_, std::span<const double>(squares));
    sums_.trim();
    tokens_[input] += x.rows();
  }
  // All rows are there, of all ranks.
  void finish(Ranks& ranks) {
    rounded_ = round_together(std::move(sums_), ranks);
    add_up(tokens_, ranks);
  }

  // Behind the matrices that are there, in the order of a GGUF's columns.
  void append_to(ImatrixEntry& entry, std::size_t input, const GgufOrder& order) const {
    for (std::size_t k = 0; k < columns_; ++k)
      entry.sums.push_back(static_cast<float>(
          rounded_[input * columns_ + static_cast<std::size_t>(order(static_cast<std::int64_t>(k)))]));
    entry.counts.push_back(static_cast<float>(tokens_[input]));
  }

 private:
  float bfloat16_at(std::size_t i) const {
    BFloat16 value;
    std::memcpy(&value, host_.data() + 2 * i, sizeof value);
    return to_float(value);
  }
  float float_at(std::size_t i) const {
    float value;
    std::memcpy(&value, host_.data() + 4 * i, sizeof value);
    return value;
  }

  Backend& backend_;
  std::vector<std::byte>& host_;
  std::size_t columns_;
  ExactSums sums_;
  ZeroedNumbers<double> rounded_;
  std::vector<std::int64_t> tokens_;
};

class Collection {
 public:
  Collection(const GgufFamily& family, const ModelSpec& spec, ActivationStream& stream, Backend& backend,
             Ranks& ranks)
      : family_(family),
        spec_(spec),
        widths_(gguf_widths(spec)),
        stream_(stream),
        backend_(backend),
        ranks_(ranks) {}

  void see_sublayer(const SublayerSpec& part, int number, const BlockSpec& block,
                    const BlockWeights& weights) {
    const MixtureSpec* const mixture = std::get_if<MixtureSpec>(&part.mixer);
    if (mixture != nullptr) return see_mixture(*mixture, number, block, weights);
    for (const SiteId site : part.sites) see_site(site, {}, number, block, weights);
  }

  Imatrix imatrix;

 private:
  // To each tensor that the linear is there; one whose columns are not the linear's inputs goes without.
  void append(const SquareSums& sums, std::size_t input, const BlockSpec& block, LinearId id) {
    const std::string name = name_in_decoder(spec_, block.at(id).weight.tensor);
    for (const std::string& tensor : gguf_names(family_, name)) {
      std::optional<GgufPart> part;
      if (family_.part != nullptr) part = family_.part(name_in_gguf_block(tensor), widths_);
      if (part && part->turned) continue;
      const std::int64_t matrices = part && part->shape.rank() > 2 ? part->shape[0] : 1;
      for (std::int64_t matrix = 0; matrix < matrices; ++matrix)  // all of which see what the linear does
        sums.append_to(imatrix.entries[tensor], input, part ? part->columns : GgufOrder());
    }
  }

  std::vector<std::string> names_of(const BlockSpec& block, LinearId id) const {
    return gguf_names(family_, name_in_decoder(spec_, block.at(id).weight.tensor));
  }

  // All readers but the linears of experts, which see rows of their own.
  void see_site(SiteId site, const std::set<LinearId>& but, int number, const BlockSpec& block,
                const BlockWeights& weights) {
    SquareSums sums(backend_, host_, 1, block.at(site).channels);
    stream_.each_input(site, number, weights, Samples::kAll, [&](const TensorView& x) { sums.add(0, x); });
    sums.finish(ranks_);
    for (const LinearId reader : block.at(site).readers)
      if (!but.contains(reader)) append(sums, 0, block, reader);
  }

  // A stack of experts has an entry of as many matrices. Of each its own rows count; the shared one sees all.
  void see_mixture(const MixtureSpec& mixture, int number, const BlockSpec& block,
                   const BlockWeights& weights) {
    std::set<LinearId> of_experts;
    std::vector<SeenExpert> experts;
    for (std::size_t e = 0; e < mixture.experts.size(); ++e) {
      const ExpertSpec& expert = mixture.experts[e];
      of_experts.insert({expert.gate.linear, expert.up.linear});
      experts.push_back({&expert, e, 0});
    }
    see_site(mixture.input, of_experts, number, block, weights);
    see_experts(experts, ExpertInput::kOfGateAndUp, mixture.hidden, number, block, weights);
    see_experts(experts, ExpertInput::kOfOutput, mixture.width, number, block, weights);
    if (!mixture.shared) return;
    const SeenExpert shared{&*mixture.shared, std::nullopt, 0};
    see_experts({&shared, 1}, ExpertInput::kOfOutput, mixture.shared_width, number, block, weights);
  }

  void see_experts(std::span<const SeenExpert> experts, ExpertInput input, std::int64_t columns, int number,
                   const BlockSpec& block, const BlockWeights& weights) {
    SquareSums sums(backend_, host_, experts.size(), columns);
    stream_.each_expert_input(number, weights, experts, input,
                              [&](std::size_t e, const TensorView& x) { sums.add(e, x); });
    sums.finish(ranks_);
    for (std::size_t e = 0; e < experts.size(); ++e) {
      const ExpertSpec& expert = *experts[e].expert;
      if (input == ExpertInput::kOfOutput) {
        append(sums, e, block, expert.output);
        continue;
      }
      append(sums, e, block, expert.gate.linear);
      if (names_of(block, expert.up.linear) != names_of(block, expert.gate.linear))  // else of one matrix
        append(sums, e, block, expert.up.linear);
    }
  }

  const GgufFamily& family_;
  const ModelSpec& spec_;
  GgufWidths widths_;
  ActivationStream& stream_;
  Backend& backend_;
  Ranks& ranks_;
  std::vector<std::byte> host_;
};

}  // namespace

Imatrix collect_importance(const Checkpoint& checkpoint, const ModelSpec& spec,
                           const CalibrationSet& calibration, Backend& backend,
                           const ImportanceOptions& options) {
  const auto length = static_cast<std::int64_t>(calibration.samples.front().size());
  const LinearSource source = LinearSource::open(checkpoint);
  const ForwardContext context = make_forward_context(spec, backend, options.compute, length);
  Ranks& ranks = or_alone(options.ranks);
  SamplePlace place;
  place.keep_inputs = options.keep_inputs;
  place.ranks = &ranks;
  ActivationStream stream(std::span(&context, 1), calibration, options.chunk_tokens, place);
  stream.embed(checkpoint, calibration);
  const GgufFamily* const family = gguf_family(spec);
  if (family == nullptr)
    fail(ErrorKind::kUnsupported, "an importance matrix has GGUF's names, and family {} has none",
         spec.family);
  Collection collection(*family, spec, stream, backend, ranks);
  collection.imatrix.chunk_count = static_cast<std::uint32_t>(calibration.samples.size());
  collection.imatrix.chunk_size = static_cast<std::uint32_t>(length);
  for (std::size_t index = 0; index < spec.blocks.size(); ++index) {
    const BlockSpec& block = spec.blocks[index];
    const int number = static_cast<int>(index);
    if (index + 1 < spec.blocks.size())
      for (const LinearSpec& linear : spec.blocks[index + 1].linears) source.read_ahead(linear);
    const BlockWeights weights = load_block(backend, options.compute, source, block);
    for (std::size_t part = 0; part < block.sublayers.size(); ++part) {
      collection.see_sublayer(block.sublayers[part], number, block, weights);
      stream.finish(part, number, weights);
    }
    if (options.on_block) options.on_block(number);
  }
  return std::move(collection.imatrix);
}

}  // namespace llmq
