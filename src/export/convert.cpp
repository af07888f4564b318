#include "export/convert.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "export/adapter_fold.h"
#include "export/conversion_steps.h"
#include "export/dense_values.h"
#include "export/formats/fused_scales.h"
#include "export/formats/mlx.h"
#include "export/formats/nf4.h"
#include "export/formats/output_format.h"
#include "export/formats/packed_modules.h"
#include "export/gguf/gguf_file.h"
#include "export/output/packed_writer.h"
#include "export/output/published_output.h"
#include "export/provenance/statement_reader.h"
#include "model/linear_source.h"
#include "ranks/agreement.h"
#include "tensor/stored_float.h"

namespace llmq {

std::optional<DType> requested_dtype(const std::optional<std::string>& name) {
  if (!name) return std::nullopt;
  if (*name == "bf16") return DType::kBF16;
  if (*name == "f16") return DType::kF16;
  if (*name == "f32") return DType::kF32;
  fail(ErrorKind::kUnsupported, {fmt::format("the type '{}' is not written by this version", *name),
                                 {},
                                 "--dtype",
                                 "types: bf16, f16, f32"});
}

void before(const ConvertRequest& request, const std::string& tensor) {
  if (request.on_tensor) request.on_tensor(tensor);
}

void copy_dense(const Checkpoint& checkpoint, std::span<const TensorDeclaration> tensors,
                const ConvertRequest& request, ModelWriter& writer, FoldWriter* fold) {
  for (const TensorDeclaration& declared : tensors) {
    if (!writer.writes(declared.name)) continue;
    before(request, declared.name);
    if (fold != nullptr && fold->write(declared, writer)) continue;
    const StoredTensor* const tensor = &checkpoint.at(declared.name);
    if (declared.dtype == tensor->view.dtype && tensor->in_order()) {
      const Lease lease = checkpoint.hold(*tensor);
      const auto* bytes = static_cast<const std::byte*>(tensor->view.pointer);
      writer.add_dense(declared.name, declared.dtype, declared.shape,
                       {bytes, static_cast<std::size_t>(tensor->view.bytes())});
    } else {
      writer.add_dense(declared.name, declared.dtype, declared.shape,
                       converted_tensor(checkpoint, *tensor, declared.dtype));
    }
  }
}

namespace {

const char* short_name(DType dtype) {
  return dtype == DType::kBF16 ? "bf16" : dtype == DType::kF16 ? "f16" : "f32";
}

void write_dequantized(const LinearSource& source, const PlannedModule& m, DType dtype, ModelWriter& writer) {
  const QuantizedMatrix matrix = source.quantized(m.module);
  std::vector<float> values(matrix.codes.size());
  dequantize(matrix, values);
  std::vector<std::byte> bytes(values.size() * static_cast<std::size_t>(element_bytes(dtype)));
  store_values(values, dtype, m.module + ".weight", source.checkpoint().path().string(), bytes.data());
  writer.add_dense(m.module + ".weight", dtype, {m.out_features, m.in_features}, bytes);
}

// Scales change their type only where every one of them survives it.
QuantizedMatrix with_scale_dtype(QuantizedMatrix matrix, DType dtype, const std::string& module,
                                 const std::string& file, const std::string& format) {
  if (matrix.scheme.scale_form() != ScaleForm::kNumber) return matrix;  // its bytes are the same everywhere
  for (const float scale : matrix.scales)
    if (dtype == DType::kF16 && stored_float(scale, dtype) != scale)
      fail(ErrorKind::kUnsupported,
           {fmt::format("the scale {} is {} and cannot be stored exactly as F16", scale,
                        dtype_row(matrix.scheme.scale_dtype).name),
            file, module,
            fmt::format("quantize with format: {}, which chooses codes against F16 scales", format)});
  matrix.scheme.scale_dtype = dtype;
  return matrix;
}

std::string report_text(const ConvertRequest& request, const ConvertReport& report) {
  Json said = Json::object({{"schema", kReportSchema},
                            {"tool", Json::object({{"name", "llmq"}, {"version", request.version}})},
                            {"method", report.adapter.empty() ? "convert" : "merge"},
                            {"from", report.from},
                            {"format", report.to},
                            {"dtype", report.dtype},
                            {"bytes_in", Json(report.bytes_in)},
                            {"bytes_out", Json(report.bytes_out)},
                            {"job", request.target.job},
                            {"digest", report.digest}});
  if (!report.adapter.empty()) said["folded"] = static_cast<std::uint64_t>(report.folded);
  return said.dump(2) + "\n";
}

void finish(const ConvertRequest& request, ModelWriter& writer, ConvertReport& report) {
  report.bytes_out = writer.bytes();
  report.digest = writer.complete();
  if (request.on_whole && !request.on_whole(writer.directory())) return;
  writer.publish({{kReportFile, report_text(request, report)}}, request.manifest);
}

}  // namespace

// Directories start again after a kill: a journal would hash every byte that is copied.
OutputTarget target_of(const ConvertRequest& request) {
  OutputTarget target = request.target;
  target.job = Json();
  if (request.split_max_size != 0) target.shard_bytes = request.split_max_size;
  return target;
}

namespace {

void copy_kv_scales(const LinearSource& source, const ModelSpec& spec, ModelWriter& writer) {
  if (!source.kv_cache()) return;
  for (const BlockSpec& block : spec.blocks)
    for (const char* which : {"k_scale", "v_scale"}) {
      const std::string name = kv_scale_name(block, which);
      if (!writer.writes(name)) continue;
      const std::vector<float> scale = source.tensor(name);
      writer.add_dense(name, DType::kF32, {1}, std::as_bytes(std::span(scale)));
    }
}

}  // namespace

Making to_packed(Io& io, const ConvertRequest& request, const Checkpoint& checkpoint,
                 const PackedModules& packed, ConvertReport& report) {
  if (packed.modules.empty())
    fail(ErrorKind::kUnsupported,
         {"the checkpoint is not quantized, and a change of container rounds nothing",
          checkpoint.path().string(), "--to " + request.to, "llmq quantize makes a quantized checkpoint"});
  if (request.dtype)
    fail(ErrorKind::kUsage, {"a type was given for a packed container, which keeps its codes",
                             {},
                             "--dtype",
                             "leave it out, or use --to safetensors"});
  if (const FusedScales scales = read_fused_scales(checkpoint, packed.modules); scales.weights)
    tell(request, said_of_keeping(*scales.weights, request.to));
  std::vector<PlannedModule> modules = packed.modules;
  if (const std::optional<DType> dtype = packed_format(request.to).scale_dtype)
    for (PlannedModule& m : modules) m.scheme.scale_dtype = *dtype;
  const ModelSpec spec = ModelSpec::read(checkpoint);
  require_written(spec, request.to, checkpoint.path().string());
  report.dtype = "as stored";
  const auto source = std::make_shared<const LinearSource>(LinearSource::open(checkpoint));
  return {
      [=, &io, &request, &checkpoint] {
        return open_writer(io, request.to, target_of(request), checkpoint, spec, modules,
                           unpacked_linears(spec, modules), {source->kv_cache(), {}});
      },
      [=, &request, &checkpoint](ModelWriter& writer) {
        copy_dense(checkpoint, written_dense_tensors(checkpoint, modules, written_dtype), request, writer);
        copy_kv_scales(*source, spec, writer);
        for (const PlannedModule& m : modules) {
          if (!writer.lacks_module(m.module)) continue;
          before(request, m.module);
          writer.add_quantized(m.module, with_scale_dtype(source->quantized(m.module), m.scheme.scale_dtype,
                                                          m.module, checkpoint.path().string(), request.to));
        }
      }};
}

namespace {

// What a model's numbers are where no type is named: as its embedding is, BF16 where that has other types.
DType type_of_numbers(const Checkpoint& checkpoint, const ModelSpec& spec) {
  const StoredTensor* embedding = checkpoint.find(spec.embedding.tensor);
  const DType stored = embedding == nullptr ? DType::kBF16 : embedding->view.dtype;
  return stored == DType::kF32 || stored == DType::kF16 ? stored : DType::kBF16;
}

Making to_dense(Io& io, const ConvertRequest& request, const Checkpoint& checkpoint,
                const PackedModules& packed, ConvertReport& report) {
  std::optional<DType> dtype = requested_dtype(request.dtype);
  if (checkpoint.is_gguf()) {
    const ModelSpec spec = ModelSpec::read(checkpoint);
    require_written(spec, request.to, checkpoint.path().string());  // a GGUF has parts of stacks apart, too
    if (!dtype && request.adapter.empty()) dtype = type_of_numbers(checkpoint, spec);
  }
  if (!dtype && !packed.modules.empty()) dtype = DType::kF32;
  const auto target_dtype = [&](const StoredTensor& tensor) {
    const DType as_is = tensor.is_scaled() ? written_dtype(tensor) : tensor.view.dtype;
    return dtype && is_float(as_is) ? *dtype : as_is;
  };
  const std::vector<TensorDeclaration> dense =
      written_dense_tensors(checkpoint, packed.modules, target_dtype);
  std::vector<TensorDeclaration> tensors = dense;
  for (const PlannedModule& m : packed.modules)
    tensors.push_back({m.module + ".weight", *dtype, {m.out_features, m.in_features}});
  report.dtype = dtype ? short_name(*dtype) : "as stored";
  std::shared_ptr<FoldWriter> fold;
  if (!request.adapter.empty()) {
    if (!packed.modules.empty())
      fail(ErrorKind::kUnsupported,
           {fmt::format("is quantized ({}), and an adapter folded into codes would be rounded away",
                        packed.format),
            checkpoint.path().string(),
            {},
            "fold it into the model that this one was made from, and quantize that; or serve this one with "
            "--lora"});
    fold = std::make_shared<FoldWriter>(io, request.adapter, checkpoint, request.threads);
    report.adapter = request.adapter;
    report.folded = fold->size();
  }
  Json config = checkpoint.config();
  const auto has_codes = [](const StoredStack& stack) { return stack.tensors.size() > 1; };
  if (std::none_of(checkpoint.stacks().begin(), checkpoint.stacks().end(), has_codes))
    config.erase("quantization_config");  // else they go out as they are
  if (dtype) set_dtype(config, *dtype);
  return {[=, &io, &request, &checkpoint] {
            return open_dense_writer(io, target_of(request), checkpoint, tensors, config);
          },
          [=, &request, &checkpoint, &packed](ModelWriter& writer) {
            copy_dense(checkpoint, dense, request, writer, fold.get());
            const LinearSource source = LinearSource::open(checkpoint);
            for (const PlannedModule& m : packed.modules) {
              if (!writer.writes(m.module + ".weight")) continue;
              before(request, m.module);
              write_dequantized(source, m, *dtype, writer);
            }
          }};
}

// Names of schemes among them, which are none of types.
bool is_float4(const std::string& name) { return name.starts_with("nvfp4") || name.starts_with("mxfp4"); }

// F32, F16, BF16 or ggml's block types; null: a GGUF's tensors keep their own.
const GgufFileType* gguf_type(const ConvertRequest& request, const Checkpoint& checkpoint,
                              const ModelSpec& spec) {
  if (!request.dtype && checkpoint.is_gguf()) return nullptr;
  const std::string name = request.dtype ? *request.dtype : short_name(type_of_numbers(checkpoint, spec));
  if (const GgufFileType* type = find_gguf_file_type(name)) return type;
  fail(ErrorKind::kUnsupported, {fmt::format("'{}' is no type that a GGUF is written in", name),
                                 {},
                                 "--dtype",
                                 gguf_file_type_hint(is_float4(name))});
}

void convert_to_gguf(Io& io, const ConvertRequest& request, const Checkpoint& checkpoint,
                     ConvertReport& report) {
  GgufRequest job;
  job.target = request.target;
  job.name = request.source;
  job.on_tensor = request.on_tensor;
  job.part_bytes = request.split_max_size;
  job.copies = true;
  ThreadPool pool(request.threads > 0 ? request.threads : available_cores());
  ModelSpec spec;
  begin_together(ranks_of(request.target), [&] {
    spec = ModelSpec::read(checkpoint);
    job.file_type = gguf_type(request, checkpoint, spec);
    if (request.tensor_types.empty()) return;
    const std::unique_ptr<GgufTensorSource> source =
        open_gguf_tensors(io, checkpoint, spec, job.file_type == nullptr || is_of_converter(*job.file_type));
    AskedGgufTypes asked = find_asked_types(request.tensor_types, job.file_type, checkpoint, spec,
                                            source->tensors(), {}, "--tensor-type");
    job.asked_types = std::move(asked.types);
    for (const std::string& warning : asked.warnings) tell(request, warning);
  });
  GgufOutput output(io, checkpoint, spec, job);
  tell(request, output.told_of_second_rounding());
  const GgufWritten written = output.write(nullptr, pool);
  if (ranks_of(request.target).rank() != 0) return;
  report.dtype = job.file_type == nullptr ? "as stored" : gguf_type_name(*job.file_type);
  report.bytes_out = written.bytes;
  report.digest = written.digest;
  if (request.on_whole && !request.on_whole(output.file())) return;
  output.publish(written, report_text(request, report), request.manifest);
}

}  // namespace

Json conversion_json(const ConvertRequest& request) {
  Json asked = Json::object({{"source", request.source},
                             {"to", request.to},
                             {"dtype", request.dtype ? Json(*request.dtype) : Json()}});
  if (!request.adapter.empty()) asked["adapter"] = request.adapter;
  if (request.split_max_size != 0) asked["split_max_size"] = request.split_max_size;
  if (request.double_quant) asked["double_quant"] = true;
  if (!request.tensor_types.empty()) asked["tensor_types"] = tensor_types_json(request.tensor_types);
  return asked;
}

ConvertRequest conversion_request(const Json& asked, const std::string& file) {
  const StatementReader reader(asked, file);
  ConvertRequest request;
  request.source = reader.text("source");
  request.to = reader.text("to");
  if (!reader.at("dtype").json().is_null()) request.dtype = reader.text("dtype");
  if (asked.find("adapter") != nullptr) request.adapter = reader.text("adapter");
  if (const Json* size = asked.find("split_max_size");
      size != nullptr && size->is_integer() && size->as_integer() > 0)
    request.split_max_size = static_cast<std::uint64_t>(size->as_integer());
  if (asked.find("tensor_types") != nullptr) request.tensor_types = tensor_types_of(reader);
  if (const Json* nested = asked.find("double_quant"); nested != nullptr)
    request.double_quant = *nested == Json(true);
  return request;
}

void check_conversion(const ConvertRequest& request) {
  const bool of_numbers = request.to == "safetensors" || request.to == kNf4Format;
  if (of_numbers) requested_dtype(request.dtype);
  if (request.to == kMlxFormat && request.dtype) parse_scheme(*request.dtype);
  std::vector<std::string> names = packed_format_names();
  names.insert(names.end(), {kGgufFormat, kNf4Format});
  if (std::find(names.begin(), names.end(), request.to) == names.end())
    fail(ErrorKind::kUnsupported, {fmt::format("the format '{}' is not written by this version", request.to),
                                   {},
                                   "--to",
                                   fmt::format("formats: {}", fmt::join(names, ", "))});
  if (request.double_quant && request.to != kNf4Format)
    fail(ErrorKind::kUsage, {"scales are nested in NF4 only", {}, "--double-quant", "--to bitsandbytes"});
  if (!request.tensor_types.empty() && request.to != kGgufFormat)
    fail(ErrorKind::kUsage,
         {"only a GGUF's tensors have types of their own", {}, "--tensor-type", "--to gguf"});
  if (!request.adapter.empty() && request.to != "safetensors")
    fail(ErrorKind::kUnsupported, {"an adapter is folded into a directory of safetensors only",
                                   {},
                                   "--to " + request.to,
                                   "fold it first, then convert"});
}

ConvertReport convert(Io& io, const Checkpoint& checkpoint, const ConvertRequest& request) {
  PackedModules packed;
  begin_together(ranks_of(request.target), [&] {
    check_conversion(request);
    packed = read_packed_modules(checkpoint);
  });
  tell_of_losses(request, checkpoint, packed);
  ConvertReport report;
  report.source = request.source;
  report.destination = request.target.directory.string();
  report.from = stored_format(checkpoint, packed.format);
  report.to = request.to;
  report.tensors = checkpoint.tensors().size();
  report.bytes_in = checkpoint.tensor_bytes();
  if (is_one_file(request.to)) {
    convert_to_gguf(io, request, checkpoint, report);
    return report;
  }
  Making making;
  begin_together(ranks_of(request.target), [&] {
    const auto made_by = request.to == kNf4Format      ? to_nf4
                         : request.to == kMlxFormat    ? to_mlx
                         : request.to == "safetensors" ? to_dense
                                                       : to_packed;
    making = made_by(io, request, checkpoint, packed, report);
  });
  const std::unique_ptr<ModelWriter> writer = making.open();
  making.fill(*writer);
  finish(request, *writer, report);
  return report;
}

const char* conversion_schema(const std::string& adapter) {
  return adapter.empty() ? "llmq.convert/1" : "llmq.merge/1";
}

Json ConvertReport::to_json() const {
  Json document = Json::object({{"schema", conversion_schema(adapter)},
                                {"source", source},
                                {"output", destination},
                                {"from", from},
                                {"to", to},
                                {"dtype", dtype},
                                {"tensors", Json(static_cast<std::uint64_t>(tensors))},
                                {"bytes_in", Json(bytes_in)},
                                {"bytes_out", Json(bytes_out)},
                                {"digest", digest}});
  if (!adapter.empty()) {
    document["adapter"] = adapter;
    document["folded"] = static_cast<std::uint64_t>(folded);
  }
  return document;
}

}  // namespace llmq
