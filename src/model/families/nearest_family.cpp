// By its name: the least edit distance, where less than half of the letters change. By its tensors: each
// family reads the config as if it were its own, and the one whose structure has most of the checkpoint's
// tensors, by name and shape, is nearest; one that lacks a key, or makes of less than half of the tensors
// anything, is not.
//
// Cost: every family's blocks are made once. Of a config that llmq does not know, so errors are no findings.
#include "model/families/nearest_family.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "model/families/wrapper.h"

namespace llmq {
namespace {

// Names as families have them, whatever a wrapper puts before them.
std::string plain_name(const std::string& name) {
  for (const std::string_view prefix : {"model.language_model.", "language_model.model."})
    if (name.starts_with(prefix)) return "model." + name.substr(prefix.size());
  return name;
}

using StoredShapes = std::map<std::string, Shape>;

StoredShapes shapes_of(const Checkpoint& checkpoint) {
  StoredShapes shapes;
  for (const StoredTensor& tensor : checkpoint.tensors())
    shapes.emplace(plain_name(tensor.name), tensor.view.shape);
  return shapes;
}

// How many of the tensors that the structure asks for are there, in the shape that it asks for.
std::int64_t count_found(const ModelSpec& spec, const StoredShapes& stored) {
  std::int64_t found = 0;
  const auto look = [&](const std::string& name, const Shape& shape) {
    const auto at = stored.find(name);
    if (!name.empty() && at != stored.end() && at->second == shape) ++found;
  };
  look(spec.embedding.tensor, {spec.vocab_size, spec.hidden_size});
  look(spec.final_norm.gain.tensor, {spec.final_norm.width});
  look("lm_head.weight", {spec.vocab_size, spec.hidden_size});
  for (const BlockSpec& block : spec.blocks) {
    for (const NormSpec& norm : block.norms)
      look(norm.gain.tensor, norm.gain_shape()), look(norm.bias.tensor, {norm.width});
    for (const MixerTensor& tensor : block.tensors) look(tensor.place.tensor, tensor.shape);
    for (const LinearSpec& linear : block.linears)
      look(linear.weight.tensor, {linear.out_features, linear.in_features}),
          look(linear.bias.tensor, {linear.out_features});
  }
  return found;
}

std::int64_t found_as(const Family& family, const Json& decoder, const Checkpoint& checkpoint,
                      const StoredShapes& stored) {
  try {
    ConfigFields config(decoder, checkpoint.path().string(), "");
    ModelSpec spec;
    family.read(config, static_cast<std::int64_t>(checkpoint.tensors().size()), spec);
    return count_found(spec, stored);
  } catch (const Error&) {
    return 0;
  }
}

std::string by_name(std::string_view type) {
  std::vector<std::string_view> known;
  for (const Family* family : families()) known.emplace_back(family->model_type);
  for (const Wrapper* wrapper : wrappers()) known.emplace_back(wrapper->model_type);
  return nearest_name(type, known);
}

}  // namespace

std::size_t edit_distance(std::string_view one, std::string_view other) {
  std::vector<std::size_t> row(other.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < one.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < other.size(); ++j) {
      const std::size_t replaced = diagonal + (one[i] == other[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

std::string nearest_name(std::string_view asked, std::span<const std::string_view> known) {
  std::string_view nearest;
  std::size_t least = (asked.size() + 1) / 2;
  for (const std::string_view name : known) {
    const std::size_t distance = edit_distance(asked, name);
    if (distance < least) least = distance, nearest = name;
  }
  return std::string(nearest);
}

std::string nearest_families(const Checkpoint& checkpoint, std::string_view model_type) {
  constexpr std::size_t kLongestType = 64;  // of a hostile config, whose length counts twice
  const std::string named = by_name(model_type.substr(0, kLongestType));
  const Json* const nested = checkpoint.config().find("text_config");
  const Json& decoder = nested != nullptr && nested->is_object() ? *nested : checkpoint.config();
  const StoredShapes stored = shapes_of(checkpoint);
  const Family* fitting = nullptr;
  std::int64_t most = std::max<std::int64_t>(1, (std::ssize(stored) + 1) / 2);
  // Of equals the one that is nearest by its name.
  std::size_t distance = 0;
  for (const Family* family : families()) {
    const std::int64_t found = found_as(*family, decoder, checkpoint, stored);
    const std::size_t away = edit_distance(model_type.substr(0, kLongestType), family->model_type);
    if (found < most || (found == most && (fitting == nullptr || away >= distance))) continue;
    most = found, fitting = family, distance = away;
  }
  std::string sentence;
  if (!named.empty()) sentence = named + " by its name";
  if (fitting != nullptr)
    sentence += fmt::format("{}{} by its tensors, of which it names and shapes {} of {}",
                            sentence.empty() ? "" : ", and ", fitting->model_type, most, stored.size());
  if (sentence.empty()) return sentence;
  return fmt::format("nearest {} {}", named.empty() || fitting == nullptr ? "is" : "are", sentence);
}

}  // namespace llmq
