// llmq deploy MODEL --to TARGET: manifests for programs that start servers, with what a checkpoint's headers
// say; nothing is touched.
#include <charconv>
#include <iostream>

#include "base/error.h"
#include "export/deploy/manifest.h"
#include "job/deploy/deployment.h"
#include "tools/build_facts.h"
#include "tools/command.h"
#include "tools/help.h"
#include "tools/print.h"

namespace llmq::tools {
namespace {

constexpr std::int64_t kMostReplicas = 1000;

struct DeployOptions {
  DeploymentRequest request;
  std::string machine = "h100-sxm", disaggregate;
};

// "2:1" -> two servers that prefill, one that decodes.
Disaggregation parse_disaggregation(const std::string& text) {
  Disaggregation into;
  const char *at = text.data(), *end = at + text.size();
  const auto first = std::from_chars(at, end, into.prefill);
  const bool parted = first.ec == std::errc() && first.ptr != end && *first.ptr == ':';
  const auto second = std::from_chars(parted ? first.ptr + 1 : end, end, into.decode);
  if (!parted || second.ec != std::errc() || second.ptr != end || into.prefill < 1 || into.decode < 1 ||
      into.prefill > kMostReplicas || into.decode > kMostReplicas)
    fail(ErrorKind::kUsage, {"'" + text + "' is not two numbers of servers",
                             {},
                             "--disaggregate",
                             "write PREFILL:DECODE, each 1 .. 1000, such as 2:1"});
  return into;
}

int run_deploy(const DeployOptions& options, const GlobalOptions& globals) {
  DeploymentRequest request = options.request;
  const std::optional<MachineRates> machine = find_machine(options.machine);
  if (!machine)
    fail(ErrorKind::kUsage,
         {"no machine is called '" + options.machine + "'", {}, "--machine", "there are " + machine_names()});
  request.machine = *machine;
  request.llmq_version = kVersion;
  if (!options.disaggregate.empty()) request.disaggregation = parse_disaggregation(options.disaggregate);
  const Json document = deployment(system_io(), request);
  if (globals.json)
    print_json(document);
  else
    std::cout << document.at("manifest").as_string() << std::flush;
  return 0;
}

}  // namespace

void add_deploy(CLI::App& app, Session& session) {
  auto options = std::make_shared<DeployOptions>();
  CLI::App* command =
      declare_command(app, "deploy", "Print manifests that serve a model, with what llmq knows of it",
                      "  llmq deploy out/llama-awq --to compose > compose.yaml\n"
                      "  llmq deploy out/llama-awq --to kubernetes --engine llmq --replicas 2\n"
                      "  llmq deploy out/llama-awq --to kserve --disaggregate 2:1 --kv-cache-dtype fp8\n");
  command->add_option("model", options->request.model, "Model: directory, .gguf file or hub name")
      ->required()
      ->type_name("");
  command->add_option("--to", options->request.target, "compose, kubernetes, kserve, llm-d or vllm-stack")
      ->required()
      ->type_name("TARGET")
      ->check(CLI::IsMember(deploy_targets()));
  command->add_option("--engine", options->request.engine, "Server that is started: vllm or llmq")
      ->type_name("NAME")
      ->check(CLI::IsMember({"vllm", "llmq"}))
      ->capture_default_str();
  command->add_option("--replicas", options->request.replicas, "Servers of the same kind")
      ->type_name("N")
      ->check(CLI::Range(std::int64_t{1}, kMostReplicas))
      ->capture_default_str();
  command
      ->add_option("--draft", options->request.draft,
                   "Draft model beside the model, or ngram: guesses from the text itself")
      ->type_name("DIR");
  command
      ->add_option(
          "--kv-cache-dtype", options->request.kv_cache,
          "Type of keys and values: auto, bf16, fp16, int8, int4, fp8 or fp8_e5m2; vLLM gets its own "
          "word for it")
      ->type_name("TYPE")
      ->capture_default_str();
  command
      ->add_option("--disaggregate", options->disaggregate,
                   "Servers that prefill and servers that decode, such as 2:1 (kserve with vllm)")
      ->type_name("P:D");
  command->add_option("--machine", options->machine, "GPUs that vLLM gets: " + machine_names())
      ->type_name("NAME")
      ->capture_default_str();
  command->callback([options, &session] {
    session.run = [options, &session] { return run_deploy(*options, session.globals); };
  });
}

}  // namespace llmq::tools
