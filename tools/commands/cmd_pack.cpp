// llmq pack DIR --oci DST: an output as an OCI image layout that registries and ModelPack tools take.
#include "export/provenance/oci_layout.h"
#include "tools/command.h"
#include "tools/help.h"
#include "tools/print.h"

namespace llmq::tools {
namespace {

struct PackOptions {
  std::string output, destination, tag = "latest";
  bool image = false;
};

int run(const PackOptions& options, const GlobalOptions& globals) {
  const OciLayout layout = pack_oci(system_io(), options.output, options.destination, options.tag,
                                    options.image ? PackForm::kImage : PackForm::kModelPack);
  if (globals.json) {
    print_json(layout.to_json());
    return 0;
  }
  std::vector<std::vector<std::string>> rows = {{"layer", "bytes", "digest"}};
  for (const PackedLayer& layer : layout.layers)
    rows.push_back({layer.name, bytes_text(layer.bytes), layer.digest.substr(0, 19)});
  print_table(rows);
  print_line(fmt::format("{}:{}: {}, {}", layout.destination.string(), layout.tag, bytes_text(layout.bytes),
                         layout.digest));
  print_line(fmt::format("push it: skopeo copy oci:{}:{} docker://REGISTRY/NAME:{}",
                         layout.destination.string(), layout.tag, layout.tag));
  return 0;
}

}  // namespace

void add_pack(CLI::App& app, Session& session) {
  auto options = std::make_shared<PackOptions>();
  CLI::App* command =
      declare_command(app, "pack", "Pack an output as an OCI image layout (CNCF ModelPack, or an image)",
                      "  llmq pack out/model-awq --oci out/model-awq.oci\n"
                      "  skopeo copy oci:out/model-awq.oci:latest docker://REGISTRY/NAME:latest\n"
                      "  llmq pack out/model-awq --oci out/model-awq.image --image\n");
  command->add_option("output", options->output, "Output directory, or .gguf file")
      ->required()
      ->type_name("");
  command->add_option("--oci", options->destination, "Directory to write, which must not exist")
      ->required()
      ->type_name("DIR");
  command->add_flag(
      "--image", options->image,
      "An ordinary image with the files in /models, for image volumes of Kubernetes and for KServe");
  command->add_option("--tag", options->tag, "Name of the artifact within the layout")
      ->type_name("NAME")
      ->capture_default_str();
  command->callback(
      [options, &session] { session.run = [options, &session] { return run(*options, session.globals); }; });
}

}  // namespace llmq::tools
