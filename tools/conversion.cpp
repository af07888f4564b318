#include "tools/conversion.h"

#include "base/error.h"
#include "job/conversion_job.h"
#include "ranks/agreement.h"
#include "tools/interrupt.h"
#include "tools/print.h"
#include "tools/version.h"

namespace llmq::tools {
namespace {

std::string folded_text(const ConvertReport& report) {
  return report.adapter.empty() ? "" : fmt::format(" with {} in {} linears", report.adapter, report.folded);
}

int report_done(const ConvertReport& report, const GlobalOptions& globals) {
  Json document = report.to_json();
  document["status"] = "done";
  if (globals.json)
    print_json(document);
  else
    print_line(fmt::format("{} ({}, {}){} -> {} ({}, {}), {} tensors, {}", report.source, report.from,
                           bytes_text(report.bytes_in), folded_text(report), report.destination, report.to,
                           bytes_text(report.bytes_out), report.tensors, report.digest));
  return 0;
}

int report_unchanged(const PublishedOutput& found, const ConvertRequest& request,
                     const GlobalOptions& globals) {
  const std::string digest = found.report.at("digest").as_string();
  if (globals.json)
    print_json(Json::object({{"schema", conversion_schema(request.adapter)},
                             {"status", "unchanged"},
                             {"source", request.source},
                             {"output", request.target.directory.string()},
                             {"digest", digest}}));
  else
    print_line(fmt::format("{}: unchanged, {} from the same job", found.directory.string(), digest));
  return 0;
}

// "re:.*down_proj=q6_k"
GgufTypeRequest read_tensor_type(const std::string& text) {
  const std::size_t equals = text.rfind('=');
  const std::string type = equals == std::string::npos ? "" : text.substr(equals + 1);
  const std::optional<DType> found = find_gguf_tensor_type(type);
  if (equals == 0 || (!found && type != "dense"))
    fail(ErrorKind::kUsage, {fmt::format("'{}' is no NAME=TYPE", text),
                             {},
                             "--tensor-type",
                             "types: dense, " + gguf_tensor_type_names()});
  return {text.substr(0, equals), found};
}

int run(Conversion& conversion, const Session& session) {
  watch_signals();
  ConvertRequest& request = conversion.request;
  request.target.directory = conversion.destination;
  if (!conversion.dtype.empty()) request.dtype = conversion.dtype;
  begin_together(session.shared(), [&] {
    if (!conversion.split_max_size.empty())
      request.split_max_size = parse_bytes(conversion.split_max_size, "--split-max-size");
    for (const std::string& text : conversion.tensor_types)
      request.tensor_types.push_back(read_tensor_type(text));
  });
  request.threads = session.globals.threads;
  request.on_tensor = [](const std::string&) { throw_if_interrupted(); };
  request.target.ranks = session.ranks;
  const auto end = run_conversion(system_io(), request, conversion.paranoid, this_program(session));
  if (!session.is_first()) return 0;
  if (const auto* report = std::get_if<ConvertReport>(&end)) return report_done(*report, session.globals);
  return report_unchanged(std::get<PublishedOutput>(end), request, session.globals);
}

}  // namespace

void run_as_conversion(CLI::App& command, const std::shared_ptr<Conversion>& conversion, Session& session) {
  command.add_flag("--overwrite", conversion->request.target.overwrite, "Replace an earlier output of llmq");
  command.add_flag("--paranoid", conversion->paranoid,
                   "Hash every input again instead of trusting size and times");
  command.callback([conversion, &session] {
    session.shares_work = true;
    session.run = [conversion, &session] { return run(*conversion, session); };
  });
}

}  // namespace llmq::tools
