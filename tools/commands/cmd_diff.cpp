// llmq diff A B: what differs between two checkpoints: config, tensors, the error of each module, size.
#include "export/diff.h"

#include "tools/command.h"
#include "tools/help.h"
#include "tools/print.h"

namespace llmq::tools {
namespace {

struct DiffOptions {
  std::string a, b;
};

std::string cell(const Json& value) { return value.is_null() ? "absent" : value.dump(); }

void print_differences(const CheckpointDiff& d) {
  if (d.equal()) print_line("every value is equal");
  std::vector<std::vector<std::string>> config = {{"config key", "A", "B"}};
  for (const ConfigDifference& difference : d.config)
    config.push_back({difference.key, cell(difference.a), cell(difference.b)});
  if (config.size() > 1) print_table(config);
  for (const std::string& name : d.only_a) print_line("only in A: " + name);
  for (const std::string& name : d.only_b) print_line("only in B: " + name);
  std::vector<std::vector<std::string>> tensors = {
      {"tensor", "A", "B", "relative error", "largest difference"}};
  std::size_t equal = 0;
  for (const TensorDifference& t : d.tensors) {
    if (t.equal)
      ++equal;
    else if (!(t.shape_a == t.shape_b))
      tensors.push_back(
          {t.name, t.stored_a + " " + t.shape_a.text(), t.stored_b + " " + t.shape_b.text(), "-", "-"});
    else
      tensors.push_back({t.name, t.stored_a, t.stored_b, number_text(t.relative_error, 4),
                         number_text(t.max_abs_error, 4)});
  }
  if (tensors.size() > 1) print_table(tensors);
  print_line(fmt::format("{} of {} tensors are equal; {} against {}", equal, d.tensors.size(),
                         bytes_text(d.bytes_a), bytes_text(d.bytes_b)));
}

}  // namespace

void add_diff(CLI::App& app, Session& session) {
  auto options = std::make_shared<DiffOptions>();
  CLI::App* command =
      declare_command(app, "diff", "Compare two checkpoints: config, tensors, error per module, size",
                      "  llmq diff DIR out/model-awq\n");
  command->add_option("a", options->a, "One checkpoint")->required()->type_name("");
  command->add_option("b", options->b, "The other")->required()->type_name("");
  command->callback([options, &session] {
    session.only_prints = true;
    session.run = [options, &session] {
      const CheckpointDiff difference = diff(system_io(), options->a, options->b);
      if (session.globals.json)
        print_json(difference.to_json());
      else
        print_differences(difference);
      return 0;
    };
  });
}

}  // namespace llmq::tools
