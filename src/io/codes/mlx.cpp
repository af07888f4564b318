// Weights as MLX stores them (mlx-lm, Apple silicon; mode affine), for matrices of any kind: linears, the
// embedding, the head.
//
//   value = round(round(code * scale) + bias), rounded to the type of scale and bias: BF16, F16 or F32
//
//   "NAME.weight" U32 [rows, columns * bits / 32]: each row a little-endian stream of codes, unsigned
//   "NAME.scales", "NAME.biases" [rows, columns / group_size]
//
// config.json's `quantization` has bits, group_size and mode, and by a module's name an object with the same
// where they are others for it. A checkpoint of them is one of plain numbers from opening on: each matrix
// lies in a mapping whose numbers are made when they are leased, so that everybody who reads, copies, counts
// or writes a tensor sees what mx.dequantize gives, and the memory of what nobody holds is free. The keys of
// config.json that say how it was stored are gone from the opened one. Source: mlx 0.32, ops.cpp
// (affine_dequantize), python/mlx/nn/layers/quantized.py; mlx-lm 0.32, utils.py (load_model, quantize_model).
//
// Cost: an unpacked code and two roundings for each number and lease, on the thread that leases.
#include "io/codes/mlx.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/disk/mapping.h"
#include "base/error.h"
#include "io/checkpoint_reader.h"
#include "tensor/packed_layout.h"
#include "tensor/quantized_matrix.h"
#include "tensor/stored_float.h"

namespace llmq {
namespace {

constexpr std::string_view kWeight = ".weight";
constexpr std::array<std::int64_t, 6> kBits = {2, 3, 4, 5, 6, 8};
constexpr std::array<std::int64_t, 3> kGroups = {32, 64, 128};

struct CodeForm {
  int bits = 0;
  std::int64_t group = 0;
};

// What config.json says of the codes of each module.
class MlxForms {
 public:
  MlxForms(const Json& said, std::string file) : file_(std::move(file)) {
    usual_ = read(said, "quantization");
    for (const auto& [key, value] : said.members()) {
      const std::string place = "quantization." + key;
      if (value.is_object())
        own_[key] = read(value, place);
      else if (value.is_bool() && !value.as_bool())
        own_[key] = std::nullopt;
      else if (!value.is_bool() && !is_field(key))
        unsupported(place, "this field is not known");
    }
  }
  // None: it is said to be no code.
  std::optional<CodeForm> of(const std::string& module) const {
    const auto found = own_.find(module);
    return found == own_.end() ? usual_ : found->second;
  }

 private:
  static bool is_field(const std::string& key) {
    return key == "bits" || key == "group_size" || key == "mode";
  }
  [[noreturn]] void unsupported(const std::string& place, std::string message) const {
    fail(ErrorKind::kUnsupported, {std::move(message), file_, place, "MLX's affine codes are read"});
  }
  template <std::size_t kCount>
  std::int64_t one_of(const Json& said, const std::string& place, const char* key,
                      const std::array<std::int64_t, kCount>& known) const {
    const Json* const value = said.find(key);
    const bool whole = value != nullptr && value->is_integer();
    if (whole && std::find(known.begin(), known.end(), value->as_integer()) != known.end())
      return value->as_integer();
    unsupported(place + "." + key,
                fmt::format("is {}, and one of {} is read", value == nullptr ? "missing" : value->dump(),
                            fmt::join(known, ", ")));
  }
  CodeForm read(const Json& said, const std::string& place) const {
    if (const Json* const mode = said.find("mode"); mode != nullptr && !(*mode == Json("affine")))
      unsupported(place + ".mode", fmt::format("the mode is {}", mode->dump()));
    for (const auto& [key, value] : said.members())
      if (place != "quantization" && !is_field(key))
        unsupported(place + "." + key, "this field is not known");
    return {static_cast<int>(one_of(said, place, "bits", kBits)), one_of(said, place, "group_size", kGroups)};
  }

  std::string file_;
  std::optional<CodeForm> usual_;
  std::map<std::string, std::optional<CodeForm>> own_;
};

struct Place {
  std::shared_ptr<const Mapping> mapping;
  std::uint64_t offset = 0;

  template <typename T>
  std::vector<T> read(std::uint64_t first, std::size_t count) const {
    const std::uint64_t from = offset + first * sizeof(T);
    const Lease lease = mapping->lease(from, count * sizeof(T));
    std::vector<T> values(count);
    std::memcpy(values.data(), mapping->bytes().data() + from, count * sizeof(T));
    return values;
  }
  std::vector<float> read_numbers(DType dtype, std::uint64_t first, std::size_t count) const {
    const std::uint64_t width = static_cast<std::uint64_t>(element_bytes(dtype)),
                        from = offset + first * width;
    const Lease lease = mapping->lease(from, count * width);
    std::vector<float> values(count);
    to_float32(TensorView(static_cast<const void*>(mapping->bytes().data() + from), dtype,
                          Shape{static_cast<std::int64_t>(count)}),
               values);
    return values;
  }
};

// Matrices one behind another, each from a block of its own on, in the order of their offsets.
struct MadeMatrix {
  std::uint64_t offset = 0, bytes = 0;
  CodeForm form;
  DType dtype = DType::kBF16;
  Place codes, scales, biases;
};

// The numbers of groups [first, first + count); groups follow one another through all rows.
std::vector<float> numbers_of(const MadeMatrix& matrix, std::uint64_t first, std::size_t count) {
  const auto group = static_cast<std::size_t>(matrix.form.group);
  const std::size_t words = group * static_cast<std::size_t>(matrix.form.bits) / 32;
  const std::vector<std::uint8_t> codes =
      unpack_bit_stream(matrix.codes.read<std::uint32_t>(first * words, count * words),
                        static_cast<std::int64_t>(count), matrix.form.group, matrix.form.bits);
  const std::vector<float> scales = matrix.scales.read_numbers(matrix.dtype, first, count),
                           biases = matrix.biases.read_numbers(matrix.dtype, first, count);
  std::vector<float> values(codes.size());
  for (std::size_t g = 0; g < count; ++g)
    affine_values(std::span(codes).subspan(g * group, group), scales[g], biases[g], matrix.dtype,
                  values.data() + g * group);
  return values;
}

// Bytes [begin, begin + into.size()) of the matrix's numbers.
void make_numbers(const MadeMatrix& matrix, std::uint64_t begin, std::span<std::byte> into) {
  constexpr std::uint64_t kGroupsAtOnce = 1024;
  const auto width = static_cast<std::uint64_t>(element_bytes(matrix.dtype)),
             group = static_cast<std::uint64_t>(matrix.form.group);
  const std::uint64_t first = begin / width, last = first + into.size() / width;
  for (std::uint64_t g = first / group; g * group < last; g += kGroupsAtOnce) {
    const std::uint64_t count = std::min(kGroupsAtOnce, ceil_div(last, group) - g);
    const std::vector<float> values = numbers_of(matrix, g, static_cast<std::size_t>(count));
    const std::uint64_t from = std::max(first, g * group), to = std::min(last, (g + count) * group);
    store_floats(std::span(values).subspan(static_cast<std::size_t>(from - g * group),
                                           static_cast<std::size_t>(to - from)),
                 matrix.dtype, into.data() + (from - first) * width);
  }
}

MakeBytes maker_of(std::vector<MadeMatrix> matrices) {
  return [matrices = std::move(matrices)](std::uint64_t offset, std::span<std::byte> into) {
    for (const MadeMatrix& matrix : matrices) {
      const std::uint64_t from = std::max(offset, matrix.offset),
                          to = std::min(offset + into.size(), matrix.offset + matrix.bytes);
      if (from < to)
        make_numbers(
            matrix, from - matrix.offset,
            into.subspan(static_cast<std::size_t>(from - offset), static_cast<std::size_t>(to - from)));
    }
  };
}

bool is_mlx(const Json& config) {
  const Json* const said = config.find("quantization");
  return said != nullptr && said->is_object() && said->find("group_size") != nullptr;
}

bool holds_codes(const StoredTensor& tensor) {
  return tensor.view.dtype == DType::kU32 && tensor.name.ends_with(kWeight);
}

std::string module_of(const StoredTensor& weight) {
  return weight.name.substr(0, weight.name.size() - kWeight.size());
}

// [rows, columns], or of more extents, of what has so many columns.
Shape with_columns(const Shape& shape, std::int64_t columns) {
  std::vector<std::int64_t> extents;
  for (int axis = 0; axis + 1 < shape.rank(); ++axis) extents.push_back(shape[axis]);
  extents.push_back(columns);
  return Shape(extents);
}

// Takes the scales and biases of codes out of the list.
std::map<std::string, StoredTensor> take_beside(std::vector<StoredTensor>& tensors) {
  std::set<std::string> names;
  for (const StoredTensor& tensor : tensors)
    if (holds_codes(tensor))
      for (const char* end : {".scales", ".biases"}) names.insert(module_of(tensor) + end);
  std::map<std::string, StoredTensor> beside;
  std::vector<StoredTensor> others;
  for (StoredTensor& tensor : tensors) {
    if (names.contains(tensor.name))
      beside.emplace(tensor.name, std::move(tensor));
    else
      others.push_back(std::move(tensor));
  }
  tensors = std::move(others);
  return beside;
}

// Of codes in whole groups, with a scale and a bias for each.
std::optional<Shape> shape_of_numbers(const TensorView& codes, const TensorView& scales,
                                      const TensorView& biases, const CodeForm& form) {
  const bool numbers =
      scales.dtype == DType::kBF16 || scales.dtype == DType::kF16 || scales.dtype == DType::kF32;
  if (!numbers || biases.dtype != scales.dtype || codes.shape.rank() < 2 || codes.shape.elements() == 0)
    return std::nullopt;
  const std::int64_t bits = codes.shape.back() * 32, columns = bits / form.bits;
  if (columns * form.bits != bits || columns % form.group != 0) return std::nullopt;
  const Shape groups = with_columns(codes.shape, columns / form.group);
  if (!(scales.shape == groups) || !(biases.shape == groups)) return std::nullopt;
  return with_columns(codes.shape, columns);
}

std::string complaint_of(const TensorView& codes, const TensorView& scales, const TensorView& biases,
                         const CodeForm& form) {
  return fmt::format(
      "is U32 of shape {} with scales {} of shape {} and biases {} of shape {}: codes of {} bits in groups "
      "of "
      "{} have whole groups in each row, and two numbers of one type for each",
      codes.shape.text(), dtype_row(scales.dtype).name, scales.shape.text(), dtype_row(biases.dtype).name,
      biases.shape.text(), form.bits, form.group);
}

}  // namespace

bool is_made_of_codes(const Checkpoint& checkpoint) {
  return std::any_of(checkpoint.tensors().begin(), checkpoint.tensors().end(),
                     [](const StoredTensor& tensor) { return tensor.made_of.has_value(); });
}

void CheckpointReader::join_mlx() {
  if (!is_mlx(state_->config)) return;
  const MlxForms forms(state_->config.at("quantization"), (state_->path / "config.json").string());
  const std::map<std::string, StoredTensor> beside = take_beside(state_->tensors);
  std::vector<MadeMatrix> matrices;
  std::uint64_t end = 0;
  for (StoredTensor& weight : state_->tensors) {
    if (!holds_codes(weight)) continue;
    const auto bad = [&](std::string message) {
      fail(ErrorKind::kBadInput,
           {std::move(message), shard(weight).string(), weight.name, "was it written by mlx-lm?"});
    };
    const auto part = [&](const char* name) -> const StoredTensor& {
      const auto tensor = beside.find(module_of(weight) + name);
      if (tensor == beside.end()) bad(fmt::format("has no {}{} beside it", module_of(weight), name));
      return tensor->second;
    };
    const std::optional<CodeForm> form = forms.of(module_of(weight));
    if (!form) bad("is U32, and config.json says that it is not quantized");
    const StoredTensor &scales = part(".scales"), &biases = part(".biases");
    const std::optional<Shape> shape = shape_of_numbers(weight.view, scales.view, biases.view, *form);
    if (!shape) bad(complaint_of(weight.view, scales.view, biases.view, *form));
    const auto place_of = [&](const StoredTensor& tensor) {
      return Place{state_->mappings[static_cast<std::size_t>(tensor.shard)], tensor.offset};
    };
    const TensorView numbers(static_cast<const void*>(nullptr), scales.view.dtype, *shape);
    matrices.push_back(
        {end, numbers.bytes(), *form, numbers.dtype, place_of(weight), place_of(scales), place_of(biases)});
    weight.made_of = {form->bits, form->group,
                      weight.view.bytes() + scales.view.bytes() + biases.view.bytes()};
    weight.view = numbers;
    weight.offset = end;
    end = round_up(end + numbers.bytes(), kIoBlock);
  }
  for (const char* key : {"quantization", "quantization_config"}) state_->config.erase(key);
  if (matrices.empty()) return;
  const auto own = static_cast<int>(state_->mappings.size());
  state_->mappings.push_back(map_made(state_->path, end, maker_of(std::move(matrices))));
  for (StoredTensor& tensor : state_->tensors) {
    if (!tensor.made_of) continue;
    tensor.shard = own;
    tensor.view.pointer = const_cast<std::byte*>(state_->mappings.back()->bytes().data() + tensor.offset);
  }
}

}  // namespace llmq
