// llmq convert SRC DST: a change of container without rounding anew, exact or refused; --dtype dequantizes. The output has a manifest, as
// those of quantize have, and a job that is done already is not done again.
#include "export/convert.h"
#include "export/gguf_mix.h"

#include "tools/command.h"
#include "tools/help.h"
#include "tools/interrupt.h"
#include "tools/job.h"
#include "tools/job_ends.h"
#include "tools/print.h"
#include "tools/provenance.h"
#include "tools/version.h"

namespace llmq::tools {
namespace {

struct Options {
  ConvertRequest request;
  std::string destination, dtype;
  bool paranoid = false;
};

ProvenanceFacts conversion_facts(const ConvertRequest& request, const Session& session) {
  ProvenanceFacts facts;
  facts.kind = BuildKind::kConvert;
  facts.version = version_text();
  facts.commit = commit_text();
  facts.command = session.command_line;
  facts.recipe = conversion_json(request);
  return facts;
}

int report_done(const ConvertReport& report, const GlobalOptions& globals) {
  Json document = report.to_json();
  document["status"] = "done";
  if (globals.json)
    print_json(document);
  else
    print_line(fmt::format("{} ({}, {}) -> {} ({}, {}), {} tensors, {}", report.source, report.from,
                           bytes_text(report.bytes_in), report.destination, report.to,
                           bytes_text(report.bytes_out), report.tensors, report.digest));
  return 0;
}

int report_unchanged(const PublishedOutput& found, const ConvertRequest& request, const GlobalOptions& globals) {
  const std::string digest = found.report.at("digest").as_string();
  if (globals.json)
    print_json(Json::object({{"schema", "llmq.convert/1"},
                             {"status", "unchanged"},
                             {"source", request.source},
                             {"output", request.target.directory.string()},
                             {"digest", digest}}));
  else
    print_line(fmt::format("{}: unchanged, {} from the same job", found.directory.string(), digest));
  return 0;
}

int run(Options& options, const Session& session) {
  watch_signals();
  ConvertRequest& request = options.request;
  request.target.directory = options.destination;
  request.target.single_file = request.to == "gguf";
  request.version = version_text();
  if (!options.dtype.empty()) request.dtype = options.dtype;
  request.threads = session.globals.threads;
  request.on_tensor = [](const std::string&) { throw_if_interrupted(); };
  check_conversion(request);
  Io& io = system_io();
  const Checkpoint checkpoint = Checkpoint::open(io, request.source);
  DigestCache digests(io, options.paranoid ? Path() : DigestCache::default_file());
  request.target.job =
      make_conversion_job(request, checkpoint, [&](const Path& path) { return digests.sha256(path); });
  const std::optional<PublishedOutput> found = unchanged_output(io, request.target, Json(), digests);
  digests.save();
  if (found) return report_unchanged(*found, request, session.globals);
  RunProvenance provenance(io, io, digests, model_files(io, checkpoint), conversion_facts(request, session));
  request.manifest = [&](const std::vector<NamedDigest>& files) { return provenance.manifest(files); };
  return report_done(convert(io, checkpoint, request), session.globals);
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
  command->add_flag("--overwrite", options->request.target.overwrite, "Replace an earlier output of llmq");
  command->add_flag("--paranoid", options->paranoid,
                    "Hash every input again instead of trusting size and times");
  command->callback(
      [options, &session] { session.run = [options, &session] { return run(*options, session); }; });
}

}  // namespace llmq::tools
