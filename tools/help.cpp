#include "tools/help.h"

namespace llmq::tools {
namespace {

constexpr char kAbout[] =
    "llmq turns an FP16 or BF16 language model into a packed INT4, INT8, FP8 or FP4\n"
    "checkpoint for vLLM, Transformers, GPTQModel and llama.cpp, and proves that it\n"
    "is still the same model.";

constexpr char kFooter[] =
    "\nA first run:\n"
    "  llmq quantize --method awq --model DIR --output out/model-awq\n"
    "  llmq eval-ppl out/model-awq --against DIR\n"
    "\n"
    "MODEL is a directory in Hugging Face layout, a .gguf file, or a hub name such as\n"
    "Qwen/Qwen3-32B that the local hub cache holds. Exit codes: 0 done; 1 failed (disk,\n"
    "memory, device); 2 the usage or an input is at fault; 3 finished, but a gate was\n"
    "not met; 130 or 143 interrupted.\n";

// CLI11's formatter with narrow columns and without its type noise: an option reads
// "  --samples N   How many ...".
class PlainFormatter : public CLI::Formatter {
 public:
  PlainFormatter() { column_width(30); }
  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_type_size() == 0 || option->get_type_name().empty()) return "";
    return " " + option->get_type_name() +
           (option->get_items_expected_max() > 1 && option->get_expected_max() > 1 ? " ..." : "");
  }
  std::string make_option_desc(const CLI::Option* option) const override {
    std::string left_out = option->get_default_str();
    if (left_out.starts_with('[')) left_out = left_out.substr(1, left_out.size() - 2);  // a list
    return option->get_description() + (left_out.empty() ? "" : "; default " + left_out);
  }
  std::string make_usage(const CLI::App* app, std::string name) const override {
    std::string usage =
        "Usage: " + (app->get_parent() ? app->get_parent()->get_name() + " " + app->get_name() : name);
    for (const CLI::Option* option :
         app->get_options([](const CLI::Option* o) { return o->get_positional(); }))
      usage += option->get_required() ? " " + option->get_name() : " [" + option->get_name() + "]";
    return "\n" + usage + (app->get_parent() ? " [OPTIONS]\n" : " COMMAND [OPTIONS]\n");
  }
};

}  // namespace

void declare_application(CLI::App& app) {
  app.description(kAbout);
  app.footer(kFooter);
  app.formatter(std::make_shared<PlainFormatter>());
  app.set_help_flag("-h,--help", "This text, or that of a command")->group("Everywhere");
  app.fallthrough();  // the flags of "Everywhere" may follow the command
  app.get_formatter()->label("SUBCOMMANDS", "Commands");
  app.get_formatter()->label("Subcommands", "Commands");
  app.get_formatter()->label("Positionals", "Arguments");
}

CLI::App* declare_command(CLI::App& app, const std::string& name, const std::string& summary,
                          const std::string& examples) {
  CLI::App* command = app.add_subcommand(name, summary);
  command->formatter(app.get_formatter());
  command->group("Commands");
  command->set_help_flag("-h,--help", "This text");
  command->footer((examples.empty() ? "" : "\nExamples:\n" + examples) +
                  "\nThe flags of `llmq --help` under \"Everywhere\" (--json, --device, --threads, ...) work "
                  "here too.\n");
  return command;
}

}  // namespace llmq::tools
