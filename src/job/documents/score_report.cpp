#include "job/documents/score_report.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/json_text.h"
#include "base/log.h"
#include "base/sha256.h"
#include "evaluate/task_scores.h"
#include "export/output/published_output.h"
#include "export/provenance/manifest.h"
#include "export/provenance/signature.h"
#include "export/report/comparison.h"
#include "export/report/html_report.h"
#include "export/report/score_documents.h"

namespace llmq {
namespace {

constexpr const char *kPageFile = "report.html", *kCardFile = "README.md";

// Where the documents of an output lie, and how they are called there.
struct ScoredOutput {
  Path place;      // the directory, or the .gguf
  Path directory;  // that holds the documents
  std::string report;
  bool file = false;
  Path signature;
  std::vector<std::string> names;  // that results may call it by
};

ScoredOutput find_output(Io& io, const std::string& named) {
  const Path path = tidy_path(named);
  ScoredOutput output;
  output.names.push_back(path.filename().string());
  if (path.extension() == ".gguf" && !io.is_directory(path)) {
    output.file = true;
    output.place = path;
    output.directory = parent_of(path);
    output.report = path.filename().string() + std::string(kBesideFile.front());
    output.signature = path.string() + kSignatureSuffix;
    output.names.push_back(path.stem().string());
    return output;
  }
  output.place = path;
  std::string version = latest_version(io, path);
  if (!version.empty()) output.place = path / version;
  if (const std::string linked = io.read_link(path); !linked.empty()) version = linked;  // DIR/latest
  if (version.empty()) version = path.filename().string();
  const std::vector<std::string> beside = versions_in(io, parent_of(path));
  if (std::find(beside.begin(), beside.end(), version) != beside.end())
    output.names.push_back(parent_of(path).filename().string());
  output.names.push_back(version);
  output.directory = output.place;
  output.report = kReportFile;
  output.signature = output.place / kSignatureFile;
  return output;
}

std::string scored_name(const std::string& model) {
  const Path path = tidy_path(model);
  return path.has_filename() ? path.filename().string() : model;
}

void must_be_of(const TaskScores& scores, const ScoredOutput& output, const ScoreRequest& request) {
  const bool same = request.model.empty() ? std::find(output.names.begin(), output.names.end(),
                                                      scored_name(scores.model)) != output.names.end()
                                          : scores.model == request.model;
  if (same) return;
  fail(ErrorKind::kBadInput,
       {fmt::format("the scores are of '{}', and not of {}", scores.model,
                    request.model.empty() ? output.place.string() : "'" + request.model + "'"),
        request.results, "model_name",
        request.model.empty() ? fmt::format("if it is this model, add --lm-eval-model '{}'", scores.model)
                              : "give the results of that model"});
}

// What a document says now has to be what the manifest says, or what is written anyway, as after a run that
// was cut short. A card may have been edited: cards are.
void must_be_vouched_for(Io& io, const ScoredOutput& output, const std::vector<NamedDigest>& subjects,
                         const std::string& name, const std::string& text) {
  if (name == kCardFile) return;
  for (const NamedDigest& subject : subjects) {
    if (subject.name != name) continue;
    const std::string now = file_sha256(io, output.directory / name);
    if (now != subject.sha256 && now != sha256_hex(std::as_bytes(std::span(text))))
      fail(ErrorKind::kBadInput, {"is not what the manifest says, and is not written anew",
                                  (output.directory / name).string(),
                                  {},
                                  "llmq verify says what differs"});
  }
}

using NamedTexts = std::vector<std::pair<std::string, std::string>>;

NamedTexts changed_documents(Io& io, const ScoredOutput& output, const Json& report) {
  NamedTexts texts;
  if (!output.file && io.exists(output.directory / kCardFile))
    texts.emplace_back(
        kCardFile, card_with_scores(read_text(io, output.directory / kCardFile), report.at("task_scores")));
  if (!output.file && io.exists(output.directory / kPageFile))
    texts.emplace_back(kPageFile, make_html_report(report));
  texts.emplace_back(output.report, report.dump(1) + "\n");
  return texts;
}

// The documents, then the manifest with their digests.
void write_documents(Io& io, const ScoredOutput& output, const NamedTexts& texts, ScoreReport& made) {
  const Path manifest = manifest_path(output.place);
  std::optional<Json> statement;
  if (io.exists(manifest)) {
    statement = Json::parse(read_text(io, manifest), manifest.string());
    const std::vector<NamedDigest> subjects = manifest_subjects(*statement, manifest.string());
    for (const auto& [name, text] : texts) must_be_vouched_for(io, output, subjects, name, text);
  }
  std::vector<NamedDigest> digests;
  for (const auto& [name, text] : texts) {
    write_text_atomically(io, output.directory / name, text);
    digests.push_back({name, text.size(), sha256_hex(std::as_bytes(std::span(text)))});
    made.written.push_back((output.directory / name).string());
  }
  if (!statement) return;
  write_text_atomically(io, manifest, manifest_with(*statement, manifest.string(), digests).dump(1) + "\n");
  made.written.push_back(manifest.string());
}

void write_hub_results(Io& io, const std::string& directory, ScoreReport& made) {
  const NamedTexts files = hub_results(made.scores);
  if (files.empty())
    return Log::get().note("no benchmark of the hub was asked of all its documents: no .eval_results");
  io.make_directory(directory);
  for (const auto& [name, text] : files) {
    write_text_atomically(io, Path(directory) / name, text);
    made.written.push_back((Path(directory) / name).string());
  }
}

}  // namespace

ScoreReport report_scores(Io& io, const ScoreRequest& request) {
  const ScoredOutput output = find_output(io, request.output);
  Json report = read_output_report(io, output.place);
  const TaskScores scores = parse_task_scores(read_text(io, request.results), request.results);
  must_be_of(scores, output, request);
  std::optional<TaskScores> baseline;
  if (!request.baseline.empty())
    baseline = parse_task_scores(read_text(io, request.baseline), request.baseline);
  ScoreReport made;
  made.output = output.place;
  if (request.max_drop)
    for (const AccuracyDrop& one : accuracy_drops(scores, *baseline, request.results, request.baseline))
      made.gates.push_back({fmt::format("max-acc-drop {} {} ({})", one.task, one.metric, one.filter),
                            *request.max_drop, one.drop});
  if (io.exists(output.signature))
    fail(ErrorKind::kBadInput, {"is signed, and other documents would make its signature false",
                                output.place.string(), output.signature.filename().string(),
                                "report the scores first and sign after, or remove the signature"});
  made.scores = to_json(scores, baseline ? &*baseline : nullptr);
  made.scores["gates"] = gates_json(made.gates);
  report["task_scores"] = made.scores;
  write_documents(io, output, changed_documents(io, output, report), made);
  if (!request.hub_results.empty()) write_hub_results(io, request.hub_results, made);
  return made;
}

}  // namespace llmq
