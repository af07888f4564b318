// llmq inspect PATH: what a checkpoint is, from its headers; with --quality also each module's error from
// report.json.
#include "export/inspect.h"

#include <algorithm>

#include "tools/command.h"
#include "tools/help.h"
#include "tools/print.h"

namespace llmq::tools {
namespace {

struct InspectOptions {
  std::string path;
  bool tensors = false, quality = false;
};

std::string figure(const Json& quality, const char* key) {
  const Json* value = quality.find(key);
  return value && value->is_number() ? number_text(value->as_double(), 3) : "-";
}

std::string word(const Json& quality, const char* key) {
  const Json* value = quality.find(key);
  return value && value->is_string() ? value->as_string() : "-";
}

void print_modules(const Inspection& found) {
  std::vector<std::vector<std::string>> rows = {
      {"module", "scheme", "method", "loss", "loss of rounding", "relative error", "weight error"}};
  for (const InspectedModule& m : found.modules)
    rows.push_back({m.planned.module, m.planned.scheme.text(), word(m.quality, "method"),
                    figure(m.quality, "loss"), figure(m.quality, "rtn_loss"),
                    figure(m.quality, "relative_error"), figure(m.quality, "weight_error")});
  print_table(rows);
}

void print_tensors(const Inspection& found) {
  std::vector<std::vector<std::string>> rows = {{"tensor", "type", "shape", "bytes"}};
  for (const ListedTensor& tensor : found.tensors)
    rows.push_back({tensor.name, tensor.dtype, tensor.shape.text(), std::to_string(tensor.bytes)});
  print_table(rows);
}

// "its decoder, llama, lies under language_model.model; vision_tower and multi_modal_projector ..."
void print_beside(const std::optional<WrapperSpec>& wrapper, const CarriedSpec& carried) {
  if (carried.parts.empty()) return;
  std::string parts;
  for (const std::string& part : carried.parts) parts += (parts.empty() ? "" : " and ") + part;
  const std::string decoder =
      wrapper ? fmt::format("its decoder, {}, lies under {}; ", wrapper->decoder, wrapper->prefix) : "";
  print_line(fmt::format("{}{} ({} tensors, {:.1f} M parameters, {}) stay as they are", decoder, parts,
                         carried.tensors, static_cast<double>(carried.parameters) / 1e6,
                         bytes_text(carried.bytes)));
}

void print_summary(const Inspection& found) {
  print_line(fmt::format("{}: {} ({}), {:.1f} M parameters, {}", found.path,
                         found.architecture.empty() ? "unknown architecture" : found.architecture,
                         found.family.empty() ? "unknown family" : found.family,
                         static_cast<double>(found.parameters) / 1e6, bytes_text(found.bytes)));
  print_line(
      fmt::format("{}, {}: {:.3f} bits per weight in the linears of its blocks, {:.3f} over the whole model",
                  found.format, found.scheme, found.bits_per_weight, found.bits_per_weight_total));
  print_beside(found.wrapper, found.carried);
  if (!found.note.empty()) print_line(found.note);
  for (const LoaderVerdict& loader : found.loaders) {
    const std::string& why = loader.fits ? loader.note : loader.reason;
    print_line(fmt::format("{} in {}{}{}", loader.fits ? "loads" : "does not load", loader.loader,
                           why.empty() ? "" : ": ", why));
  }
}

int run(const InspectOptions& options, const GlobalOptions& globals) {
  const Inspection found = inspect(system_io(), options.path, options.quality);
  if (globals.json) {
    print_json(found.to_json(options.tensors, options.quality));
    return 0;
  }
  print_summary(found);
  if (options.quality) print_modules(found);
  if (options.tensors) print_tensors(found);
  return 0;
}

}  // namespace

void add_inspect(CLI::App& app, Session& session) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command =
      declare_command(app, "inspect", "Say what a checkpoint is: family, sizes, scheme, bits per weight",
                      "  llmq inspect out/model-awq --quality\n  llmq inspect model.gguf --tensors\n");
  command->add_option("path", options->path, "Checkpoint to look at")->required()->type_name("");
  command->add_flag("--tensors", options->tensors, "List every tensor");
  command->add_flag("--quality", options->quality, "List every quantized module with its scheme and error");
  command->callback([options, &session] {
    session.only_prints = true;
    session.run = [options, &session] { return run(*options, session.globals); };
  });
}

}  // namespace llmq::tools
