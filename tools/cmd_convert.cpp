// llmq convert SRC DST: a change of container without rounding anew, exact or refused; --dtype dequantizes.
#include "export/convert.h"
#include "export/gguf_mix.h"

#include "tools/command.h"
#include "tools/help.h"
#include "tools/interrupt.h"
#include "tools/print.h"
#include "tools/version.h"

namespace llmq::tools {
namespace {

struct Options {
  ConvertRequest request;
  std::string destination, dtype;
};

int run(Options& options, const GlobalOptions& globals) {
  watch_signals();
  options.request.destination = options.destination;
  options.request.version = version_text();
  if (!options.dtype.empty()) options.request.dtype = options.dtype;
  options.request.threads = globals.threads;
  options.request.on_tensor = [](const std::string&) { throw_if_interrupted(); };
  const ConvertReport report = convert(system_io(), options.request);
  if (globals.json) {
    print_json(report.to_json());
    return 0;
  }
  print_line(fmt::format("{} ({}, {}) -> {} ({}, {}), {} tensors, {}", report.source, report.from,
                         bytes_text(report.bytes_in), report.destination, report.to,
                         bytes_text(report.bytes_out), report.tensors, report.digest));
  return 0;
}

}  // namespace

void add_convert(CLI::App& app, Session& session) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      declare_command(app, "convert", "Change the container of a checkpoint, exactly or not at all",
                      "  llmq convert model.gguf out/model --dtype bf16\n"
                      "  llmq convert DIR out/model-q4_k_m.gguf --to gguf --dtype q4_k_m\n"
                      "  llmq convert out/model-awq out/model-awq-f32 --to safetensors --dtype f32\n"
                      "  llmq convert out/model-ct out/model-gemm --to awq\n");
  command->add_option("source", options->request.source, "Checkpoint to read")->required()->type_name("");
  command->add_option("destination", options->destination, "Directory, or .gguf file, to write")
      ->required()
      ->type_name("");
  command->add_option("--to", options->request.to, "safetensors (dense), gguf, compressed-tensors, awq, gptq or gptq_v2")
      ->type_name("FORMAT")
      ->capture_default_str();
  command
      ->add_option("--dtype", options->dtype,
                   "Type of dense tensors: bf16, f16 or f32; packed ones are dequantized. To gguf: " +
                       gguf_file_type_names())
      ->type_name("TYPE");
  command->add_flag("--overwrite", options->request.overwrite, "Replace an earlier output of llmq");
  command->callback(
      [options, &session] { session.run = [options, &session] { return run(*options, session.globals); }; });
}

}  // namespace llmq::tools
