// Conversions that round: a dense checkpoint in the own way of another program, bitsandbytes or MLX.
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "export/conversion_steps.h"
#include "export/formats/mlx.h"
#include "export/formats/nf4.h"
#include "export/output/packed_writer.h"
#include "io/codes/first_rounding.h"
#include "io/codes/mlx.h"
#include "model/linear_source.h"
#include "model/tensor_reading.h"

namespace llmq {
namespace {

// How a dense checkpoint is rounded where its matrices are written in another program's own way.
struct RoundedOutput {
  std::vector<PlannedModule> modules;
  std::function<std::vector<TensorDeclaration>(const PlannedModule&)> declare;
  std::function<std::vector<PackedTensor>(const PlannedModule&, std::span<const float>)> pack;
  Json config;                              // quantization_config
  const PackedFormatRow* format = nullptr;  // of loaders that want more than tensors
  std::optional<DType> dense;               // all else; none: as it is stored
};

// The tensor that a module is made of: a tied embedding may be stored as the head alone.
const StoredTensor& weight_of(const Checkpoint& checkpoint, const ModelSpec& spec, const PlannedModule& m) {
  const StoredTensor* const own = checkpoint.find(m.module + ".weight");
  return own != nullptr ? *own : checkpoint.at(spec.embedding.tensor);
}

void fill_rounded(const ConvertRequest& request, const Checkpoint& checkpoint, const ModelSpec& spec,
                  const RoundedOutput& output, ModelWriter& writer) {
  ThreadPool pool(request.threads > 0 ? request.threads : available_cores());
  for (const PlannedModule& m : output.modules) {
    const std::vector<TensorDeclaration> declared = output.declare(m);
    const auto writes = [&](const TensorDeclaration& tensor) { return writer.writes(tensor.name); };
    if (std::none_of(declared.begin(), declared.end(), writes)) continue;
    before(request, m.module);
    const ZeroedNumbers<float> weight = read_finite(checkpoint, weight_of(checkpoint, spec, m), false, pool);
    for (const PackedTensor& tensor : output.pack(m, {weight.data(), weight.size()}))
      if (writes(tensor.declaration))
        writer.add_dense(tensor.declaration.name, tensor.declaration.dtype, tensor.declaration.shape,
                         tensor.bytes);
  }
}

Making to_rounded(Io& io, const ConvertRequest& request, const Checkpoint& checkpoint, const ModelSpec& spec,
                  const RoundedOutput& output) {
  const auto dtype_of = [&](const StoredTensor& tensor) {
    const DType as_is = written_dtype(tensor);
    return output.dense && is_float(as_is) ? *output.dense : as_is;
  };
  std::vector<PlannedModule> taken = output.modules;  // by the names of the checkpoint
  for (PlannedModule& m : taken)
    if (const std::string& name = weight_of(checkpoint, spec, m).name; name != m.module + ".weight")
      m.module = name.substr(0, name.rfind(".weight"));
  const std::vector<TensorDeclaration> dense = written_dense_tensors(checkpoint, taken, dtype_of);
  std::vector<TensorDeclaration> tensors = dense;
  for (const PlannedModule& m : output.modules)
    for (TensorDeclaration& tensor : output.declare(m)) tensors.push_back(std::move(tensor));
  for (const PlannedModule& m : output.modules)
    if (const std::string form = first_rounding(weight_of(checkpoint, spec, m)); !form.empty()) {
      tell(request, told_of_second_rounding(m.module, form));
      break;
    }
  Json config = checkpoint.config();
  config["quantization_config"] = output.config;
  if (output.dense) set_dtype(config, *output.dense);
  return {[=, &io, &request, &checkpoint] {
            return open_dense_writer(io, target_of(request), checkpoint, tensors, config, output.format,
                                     &spec);
          },
          [=, &request, &checkpoint](ModelWriter& writer) {
            copy_dense(checkpoint, dense, request, writer);
            fill_rounded(request, checkpoint, spec, output, writer);
          }};
}

void refuse_twice(const Checkpoint& checkpoint, const std::string& format) {
  if (format == format_name(PackedFormat::kNone)) return;
  fail(ErrorKind::kUnsupported, {fmt::format("is quantized ({}), and would be rounded twice", format),
                                 checkpoint.path().string(),
                                 {},
                                 "convert the model that it was made from"});
}

}  // namespace

// NF4: rounded, of a dense checkpoint; all else as it is stored, or in the type asked for.
Making to_nf4(Io& io, const ConvertRequest& request, const Checkpoint& checkpoint,
              const PackedModules& packed, ConvertReport& report) {
  refuse_twice(checkpoint, packed.format);
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const std::optional<DType> asked = requested_dtype(request.dtype);
  const auto dtype_of = [=, &checkpoint](const PlannedModule& m) {
    const DType stored = written_dtype(weight_of(checkpoint, spec, m));
    const DType own = asked && is_float(stored) ? *asked : stored;
    return own == DType::kF32 || own == DType::kF16 ? own : DType::kBF16;
  };
  const bool nested = request.double_quant;
  RoundedOutput output;
  output.modules = nf4_modules(checkpoint, spec);
  const auto form_of = [=](const PlannedModule& m) { return Nf4Form{dtype_of(m), nested}; };
  output.declare = [=](const PlannedModule& m) { return declare_nf4(m, form_of(m)); };
  output.pack = [=](const PlannedModule& m, std::span<const float> weight) {
    return pack_nf4(m, weight, form_of(m));
  };
  std::vector<std::string> left = unpacked_linears(spec, output.modules);
  left.insert(left.begin(), spec.head_module);
  output.config = nf4_config(left, form_of(output.modules.front()));
  output.dense = asked;
  report.dtype = nested ? "nf4_nested" : "nf4";
  return to_rounded(io, request, checkpoint, spec, output);
}

// MLX: a dense checkpoint as mlx_lm.convert rounds it; codes of another container as they are.
Making to_mlx(Io& io, const ConvertRequest& request, const Checkpoint& checkpoint,
              const PackedModules& packed, ConvertReport& report) {
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const PackedFormatRow& format = packed_format(kMlxFormat);
  check_model_written(format, spec, checkpoint.path().string());
  if (!packed.modules.empty()) return to_packed(io, request, checkpoint, packed, report);
  if (is_made_of_codes(checkpoint)) refuse_twice(checkpoint, kMlxFormat);
  RoundedOutput output;
  report.dtype = request.dtype.value_or("w4a16_g64_asym");
  output.modules = mlx_modules(checkpoint, spec, report.dtype);
  check_expressible(kMlxFormat, output.modules);
  output.declare = format.declare;
  output.pack = quantize_mlx;
  output.config = format.config({output.modules, {}});
  output.format = &format;
  return to_rounded(io, request, checkpoint, spec, output);
}

}  // namespace llmq
