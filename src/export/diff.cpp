#include "export/diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "export/formats/packed_modules.h"
#include "export/output/packed_writer.h"
#include "export/shape_json.h"
#include "model/linear_source.h"
#include "model/open_checkpoint.h"

namespace llmq {
namespace {

// A checkpoint as the weights it means: every dense tensor, and one weight for every packed linear.
struct Side {
  Checkpoint checkpoint;
  LinearSource source;
  PackedModules packed;
  std::map<std::string, const PlannedModule*> weights;  // by logical name; null for a dense tensor

  Side(Io& io, const std::string& model)
      : checkpoint(open_checkpoint(io, model)),
        source(LinearSource::open(checkpoint)),
        packed(read_packed_modules(checkpoint)) {
    for (const TensorDeclaration& tensor :
         dense_tensors(checkpoint, packed.modules, [](const StoredTensor& t) { return t.view.dtype; }))
      weights.emplace(tensor.name, nullptr);
    for (const PlannedModule& m : packed.modules) weights.emplace(m.module + ".weight", &m);
  }

  Shape shape(const std::string& name) const {
    const PlannedModule* m = weights.at(name);
    return m != nullptr ? Shape{m->out_features, m->in_features} : checkpoint.at(name).view.shape;
  }
  std::string stored(const std::string& name) const {
    const PlannedModule* m = weights.at(name);
    return m != nullptr ? m->scheme.text() : std::string(dtype_row(checkpoint.at(name).view.dtype).name);
  }
  std::vector<float> values(const std::string& name) const {
    const PlannedModule* m = weights.at(name);
    if (m == nullptr) return checkpoint.read_float32(checkpoint.at(name));
    const QuantizedMatrix matrix = source.quantized(m->module);
    std::vector<float> read(matrix.codes.size());
    dequantize(matrix, read);
    return read;
  }
};

// NaN equals NaN here: the question is whether two files say the same.
void compare(std::span<const float> a, std::span<const float> b, TensorDifference& into) {
  double difference = 0, norm = 0;
  into.equal = true;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = a[i], y = b[i], d = x - y;
    norm += x * x;
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    into.equal = false;
    difference += d * d;
    into.max_abs_error = std::max(into.max_abs_error, std::abs(d));
  }
  if (into.equal) return;
  into.relative_error = norm == 0 ? std::numeric_limits<double>::infinity() : std::sqrt(difference / norm);
}

// Objects are compared key by key, everything else whole.
void compare_config(const std::string& prefix, const Json& a, const Json& b,
                    std::vector<ConfigDifference>& into) {
  std::set<std::string> keys;
  for (const Json* side : {&a, &b})
    for (const Json::Member& member : side->members()) keys.insert(member.first);
  for (const std::string& key : keys) {
    const Json *x = a.find(key), *y = b.find(key);
    if (x != nullptr && y != nullptr && *x == *y) continue;
    const std::string path = prefix.empty() ? key : fmt::format("{}.{}", prefix, key);
    if (x != nullptr && y != nullptr && x->is_object() && y->is_object())
      compare_config(path, *x, *y, into);
    else
      into.push_back({path, x != nullptr ? *x : Json(), y != nullptr ? *y : Json()});
  }
}

}  // namespace

CheckpointDiff diff(Io& io, const std::string& a, const std::string& b) {
  const Side left(io, a), right(io, b);
  CheckpointDiff result;
  result.a = a, result.b = b;
  result.bytes_a = left.checkpoint.tensor_bytes(), result.bytes_b = right.checkpoint.tensor_bytes();
  compare_config("", left.checkpoint.config(), right.checkpoint.config(), result.config);
  for (const auto& weight : right.weights)
    if (left.weights.count(weight.first) == 0) result.only_b.push_back(weight.first);
  for (const auto& weight : left.weights) {
    const std::string& name = weight.first;
    if (right.weights.count(name) == 0) {
      result.only_a.push_back(name);
      continue;
    }
    TensorDifference one{
        name, left.stored(name), right.stored(name), left.shape(name), right.shape(name), false, 0, 0};
    if (one.shape_a == one.shape_b) compare(left.values(name), right.values(name), one);
    result.tensors.push_back(std::move(one));
  }
  return result;
}

bool CheckpointDiff::equal() const {
  const auto same = [](const TensorDifference& tensor) {
    return tensor.equal && tensor.stored_a == tensor.stored_b;
  };
  return config.empty() && only_a.empty() && only_b.empty() &&
         std::all_of(tensors.begin(), tensors.end(), same);
}

Json CheckpointDiff::to_json() const {
  Json json = Json::object({{"schema", "llmq.diff/1"},
                            {"a", a},
                            {"b", b},
                            {"equal", equal()},
                            {"bytes_a", Json(bytes_a)},
                            {"bytes_b", Json(bytes_b)},
                            {"config", Json::array()},
                            {"only_a", text_list(only_a)},
                            {"only_b", text_list(only_b)},
                            {"tensors", Json::array()}});
  for (const ConfigDifference& one : config)
    json["config"].push_back(Json::object({{"key", one.key}, {"a", one.a}, {"b", one.b}}));
  for (const TensorDifference& one : tensors) {
    Json entry = Json::object({{"name", one.name},
                               {"stored_a", one.stored_a},
                               {"stored_b", one.stored_b},
                               {"shape_a", shape_json(one.shape_a)}});
    entry["shape_b"] = shape_json(one.shape_b);
    entry["equal"] = one.equal;
    if (one.shape_a == one.shape_b) {
      entry["relative_error"] = one.relative_error;
      entry["max_abs_error"] = one.max_abs_error;
    }
    json["tensors"].push_back(std::move(entry));
  }
  return json;
}

}  // namespace llmq
