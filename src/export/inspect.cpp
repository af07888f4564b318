#include "export/inspect.h"

#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "base/json_text.h"
#include "export/formats/mlx.h"
#include "export/formats/output_format.h"
#include "export/formats/packed_formats.h"
#include "export/formats/packed_modules.h"
#include "export/output/published_output.h"
#include "export/shape_json.h"
#include "model/open_checkpoint.h"

namespace llmq {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

std::string first_architecture(const Json& config) {
  const Json* list = config.find("architectures");
  const bool named =
      list != nullptr && list->is_array() && !list->items().empty() && list->items()[0].is_string();
  return named ? list->items()[0].as_string() : "";
}

// AutoRound's own: what loads it goes by rules that the table of loaders does not have.
bool in_a_foreign_container(const Json& config) {
  const Json* quantization = config.find("quantization_config");
  return quantization != nullptr && text_at(*quantization, "quant_method") == "auto-round";
}

// The modules of report.json: an array of objects with "module".
Json quality_of(const Json& report, const std::string& module) {
  const Json* modules = report.find("modules");
  if (modules == nullptr || !modules->is_array()) return {};
  for (const Json& entry : modules->items())
    if (text_at(entry, "module") == module) return entry;
  return {};
}

// Family, architecture and parameters from the model's structure; of a model llmq does not know, what the
// config and the tensors say. Dense linears of the blocks are gathered for the bits per weight of a
// checkpoint that is not packed.
std::vector<std::string> read_structure(const Checkpoint& checkpoint, std::span<const PlannedModule> packed,
                                        Inspection& into) {
  try {
    const ModelSpec spec = ModelSpec::read(checkpoint);
    into.family = spec.family;
    into.architecture = spec.architecture;
    into.parameters = spec.parameters() + spec.carried.parameters;
    into.wrapper = spec.wrapper;
    into.carried = spec.carried;
    return unpacked_linears(spec, packed);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUnsupported) throw;
    into.note = error.what();
  }
  into.family = text_at(checkpoint.config(), "model_type");
  into.architecture = first_architecture(checkpoint.config());
  std::vector<std::string> names;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    into.parameters += tensor.view.shape.elements();
    if (tensor.name.ends_with(".weight") && tensor.view.shape.rank() == 2)
      names.push_back(tensor.name.substr(0, tensor.name.size() - 7));
  }
  return names;
}

// As a scheme says it; of numbers that are no codes, their type.
std::string form_of(const StoredTensor& tensor) {
  if (tensor.made_of) return fmt::format("w{}a16_g{}_asym", tensor.made_of->bits, tensor.made_of->group);
  return lower(dtype_row(tensor.view.dtype).name);
}

// bitsandbytes' scales, which stand beside the tensor.
std::uint64_t bytes_of_scales(const StoredTensor& tensor) {
  if (!tensor.bits_and_bytes) return 0;
  const StoredTensor::Part &scales = tensor.bits_and_bytes->scales, &nested = tensor.bits_and_bytes->nested;
  return scales.view.bytes() + (nested.view.pointer == nullptr ? 0 : nested.view.bytes());
}

// Bits of the dense linears, and the type most of them have.
void measure_dense(const Checkpoint& checkpoint, std::span<const std::string> linears, Inspection& into) {
  double bits = 0, weights = 0;
  std::string dtype;
  for (const std::string& linear : linears) {
    const StoredTensor* tensor = checkpoint.find(linear + ".weight");
    if (tensor == nullptr) continue;
    bits += 8.0 * static_cast<double>(tensor->bytes_on_disk() + bytes_of_scales(*tensor));
    weights += static_cast<double>(tensor->view.shape.elements());
    const std::string name = form_of(*tensor);
    dtype = dtype.empty() || dtype == name ? name : "mixed";
  }
  into.bits_per_weight = weights == 0 ? 0 : bits / weights;
  into.scheme = dtype;
}

}  // namespace

Inspection inspect(Io& io, const std::string& model, bool with_quality) {
  const Checkpoint checkpoint = open_checkpoint(io, model);
  const PackedModules packed = read_packed_modules(checkpoint);
  Inspection result;
  result.path = checkpoint.path().string();
  result.format = stored_format(checkpoint, packed.format);
  result.bytes = checkpoint.tensor_bytes();
  const Path report = checkpoint.path() / kReportFile;
  if (!checkpoint.is_gguf() && io.exists(report))
    result.report = Json::parse(read_text(io, report), report.string());
  if (with_quality && result.report.find("modules") == nullptr)
    fail(ErrorKind::kBadInput, {"has no report.json with errors per module",
                                result.path,
                                {},
                                "--quality is for checkpoints that llmq quantize wrote"});

  const std::vector<std::string> dense_linears = read_structure(checkpoint, packed.modules, result);
  for (const StoredTensor& tensor : checkpoint.tensors())
    result.tensors.push_back({tensor.name, std::string(dtype_row(tensor.view.dtype).name), tensor.view.shape,
                              tensor.bytes_on_disk()});
  if (packed.modules.empty()) {
    measure_dense(checkpoint, dense_linears, result);
  } else {
    result.scheme = common_scheme(packed.modules);
    result.bits_per_weight = stored_bits_per_weight(packed.format, packed.modules);
    if (!in_a_foreign_container(checkpoint.config()))
      result.loaders = loader_verdicts(packed.format, packed.modules, result.path,
                                       {dense_linears, read_fused_scales(checkpoint, packed.modules)});
  }
  for (const PlannedModule& m : packed.modules)
    result.modules.push_back(
        {m, stored_bits_per_weight(packed.format, {&m, 1}), quality_of(result.report, m.module)});
  if (result.parameters > 0)
    result.bits_per_weight_total =
        8.0 * static_cast<double>(result.bytes) / static_cast<double>(result.parameters);
  return result;
}

Json Inspection::to_json(bool with_tensors, bool with_quality) const {
  Json json = Json::object({{"schema", "llmq.inspect/1"},
                            {"path", path},
                            {"family", family},
                            {"architecture", architecture},
                            {"parameters", parameters},
                            {"bytes", Json(bytes)},
                            {"bits_per_weight", bits_per_weight},
                            {"bits_per_weight_total", bits_per_weight_total},
                            {"scheme", scheme},
                            {"format", format},
                            {"tensors", Json::array()}});
  if (!note.empty()) json["note"] = note;
  if (wrapper) json["wrapper"] = Json::object({{"decoder", wrapper->decoder}, {"prefix", wrapper->prefix}});
  if (!carried.parts.empty())
    json["carried"] = Json::object({{"parts", text_list(carried.parts)},
                                    {"tensors", carried.tensors},
                                    {"parameters", carried.parameters},
                                    {"bytes", Json(carried.bytes)}});
  if (!loaders.empty()) json["loaders"] = llmq::to_json(loaders);
  if (with_tensors)
    for (const ListedTensor& tensor : tensors)
      json["tensors"].push_back(Json::object({{"name", tensor.name},
                                              {"dtype", tensor.dtype},
                                              {"shape", shape_json(tensor.shape)},
                                              {"bytes", Json(tensor.bytes)}}));
  if (!modules.empty()) json["modules"] = Json::array();
  for (const InspectedModule& m : modules) {
    Json entry = Json::object({{"module", m.planned.module},
                               {"scheme", m.planned.scheme.text()},
                               {"bits_per_weight", m.bits_per_weight}});
    if (with_quality && m.quality.is_object())
      for (const Json::Member& member : m.quality.members())
        if (entry.find(member.first) == nullptr) entry[member.first] = member.second;
    json["modules"].push_back(std::move(entry));
  }
  return json;
}

}  // namespace llmq
