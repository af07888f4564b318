#include "job/quantize_job.h"

#include <array>

#include "base/error.h"
#include "base/log.h"
#include "base/resident_memory.h"
#include "base/seconds_since.h"
#include "export/formats/output_format.h"
#include "job/card_header.h"
#include "job/changed_weights.h"
#include "job/job_identity.h"
#include "job/run_adapter.h"
#include "quant/pipeline/activation_stream.h"
#include "quant/plan/plan.h"
#include "quant/plan/ranks/rank_time.h"

namespace llmq {
namespace {

// Two seconds of probing are little beside a run of minutes, and a twentieth of one of half a minute, which
// nobody plans for.
bool is_long(const PlanOutline& plan) {
  constexpr double kFlops = 5e13;
  constexpr std::uint64_t kBytes = 2'000'000'000;
  return plan.flops >= kFlops || plan.bytes_in >= kBytes;
}

LoadedModel open_changed(Io& io, const QuantizeRequest& request) {
  const Recipe& recipe = request.recipe;
  LoadedModel model = open_to_round(io, recipe.model, recipe.adapter);
  change_weights(io, recipe, request.allow_nonfinite, model);
  return model;
}

}  // namespace

std::string wanted_arithmetic(const Recipe& recipe) { return recipe.portable ? kPortableArithmetic : ""; }

QuantizeJob::QuantizeJob(Io& io, QuantizeRequest request, JobSettings settings)
    : io_(io),
      request_(std::move(request)),
      settings_(std::move(settings)),
      start_(std::chrono::steady_clock::now()),
      files_(request_.direct_io ? Reading::kDirect : Reading::kCached),
      model_(open_changed(*files_.model, request_)),
      planned_({request_.recipe, model_, settings_, io_, *files_.model, *files_.scratch,
                request_.allow_nonfinite}),
      digests_(io_, request_.paranoid ? Path() : DigestCache::default_file()),
      whole_file_reads_(whole_file_reads(model_, *files_.model, digests_)) {}

// Samples are dealt by whole chunks.
void QuantizeJob::check_samples() const {
  const CalibrationSet& calibration = planned_.calibration();
  const std::int64_t ranks = settings_.ranks().size();
  if (calibration.samples.empty()) return;
  const auto samples = static_cast<std::int64_t>(calibration.samples.size()),
             length = static_cast<std::int64_t>(calibration.samples.front().size()),
             chunk = calibration_chunk(request_.recipe, model_.spec),
             chunks = chunk_count(samples, length, chunk);
  if (ranks <= chunks) return;
  fail(ErrorKind::kUsage,
       {fmt::format(
            "{} ranks are more than the {} chunk{} that the {} calibration samples are dealt in, of up "
            "to {} tokens each",
            ranks, chunks, chunks == 1 ? "" : "s", samples, chunk),
        request_.recipe.source, "calibration.samples",
        fmt::format("start at most {} of them, or take at least {} samples", chunks,
                    (ranks - 1) * (chunk / length) + 1)});
}

OutputTarget QuantizeJob::target() const {
  OutputTarget target{request_.recipe.output, request_.overwrite};
  target.single_file = is_one_file(form().outline().format);
  target.job = outcome_.facts.job;
  target.measured = measured_;
  target.restart = request_.restart;
  target.versioned = request_.recipe.versioned;
  target.keep = request_.recipe.keep;
  target.ranks = settings_.shared_by;
  return target;
}

void QuantizeJob::identify() {
  const auto sha256 = [&](const Path& path) { return digests_.sha256(path, *files_.model); };
  outcome_.facts.job =
      make_job(request_.recipe, model_, planned_.calibration(), settings_, request_.allow_nonfinite, sha256);
  form().identify(outcome_.facts.job, [&](const Path& path) { return digests_.sha256(path); });
}

void QuantizeJob::predict() {
  const std::uint64_t before = files_.model->counters().bytes_read;
  outcome_.prediction = form().predict();
  const std::uint64_t read = files_.model->counters().bytes_read - before;
  if (read > 0) whole_file_reads_.push_back({"prediction of time", read});
}

std::vector<ReadPass> QuantizeJob::reads() const {
  std::vector<ReadPass> reads = whole_file_reads_;
  for (ReadPass& pass : form().tensor_reads()) reads.push_back(std::move(pass));
  return reads;
}

void QuantizeJob::choose_bits() {
  const auto before = std::chrono::steady_clock::now();
  planned_.choose_bits();
  measuring_seconds_ = seconds_since(before);
}

// What is predicted is the time of one process.
JobPreview QuantizeJob::preview() {
  if (!measuring_seconds_) choose_bits();
  predict();
  if (form().outline().chooses_bits)
    outcome_.prediction->add(
        kMeasuringPart,
        *measuring_seconds_ / form().shares().of_part(kMeasuringPart, settings_.ranks().size()));
  return {*outcome_.prediction, with_reads(form().costs(), reads())};
}

std::vector<Fact> QuantizeJob::facts() {
  planned_.calibrate();
  check_samples();
  identify();
  return job_facts(outcome_.facts.job);
}

// At rank 0; elsewhere an empty one, in its place.
std::optional<PublishedOutput> QuantizeJob::find_unchanged() {
  Ranks& ranks = settings_.ranks();
  std::optional<PublishedOutput> found;
  first_begins(ranks, [&] {
    const std::string& importance = request_.recipe.gguf.imatrix_out;
    if (!importance.empty() && !io_.exists(importance)) return;  // only a run writes it
    found = unchanged_output(io_, target(), request_.recipe.to_json().at("evaluate"), digests_);
  });
  digests_.save();
  if (most_of(ranks, found ? 1 : 0) != 0 && !found) found.emplace();
  return found;
}

// What rank 0 finds that an interrupted run measured, on every rank: all measure, or none does.
Json QuantizeJob::known_measures() const {
  Ranks& ranks = settings_.ranks();
  Json found;
  first_begins(ranks, [&] { found = measured_before(io_, target()); });
  return broadcast_json(ranks, 0, found);
}

JobEnd QuantizeJob::run() {
  planned_.calibrate();
  if (outcome_.facts.job.is_null()) identify();
  std::optional<PublishedOutput> found = find_unchanged();
  if (found && settings_.ranks().rank() != 0) return {};
  if (found) {
    const bool file = is_one_file(form().outline().format);
    Json document = unchanged_json(*found, file ? found->directory.string() : request_.recipe.output,
                                   compute_name(settings_.compute), form().outline().modules);
    document["seconds"] = seconds_since(start_);
    document["peak_rss_bytes"] = peak_resident_bytes();
    document["peak_device_bytes"] = 0;
    return {std::move(found), {}, std::move(document)};
  }
  form().check_target(target());
  if (form().outline().chooses_bits) measured_ = planned_.choose_bits(known_measures());
  // What is predicted is the time of one process.
  if (settings_.ranks().size() == 1 && is_long(form().outline())) predict();
  if (outcome_.prediction && !outcome_.prediction->unknown.empty()) outcome_.prediction.reset();
  for (const std::string& warning : form().outline().warnings) Log::get().warn(warning);
  fill_facts();
  write_and_publish();
  if (settings_.ranks().rank() != 0) return {};
  return {std::nullopt, outcome_, outcome_json(outcome_)};
}

void QuantizeJob::fill_facts() {
  const PlanOutline plan = form().outline();
  RunFacts& facts = outcome_.facts;
  facts.version = settings_.program.version;
  facts.command = settings_.program.command_line;
  facts.model = request_.recipe.model;
  if (model_.adapter)
    facts.adapter = ReportedAdapter{model_.adapter->directory, model_.adapter->rank,
                                    static_cast<std::int64_t>(model_.adapter->linears)};
  facts.method = plan.method;
  facts.scheme = plan.scheme;
  facts.format = plan.format;
  facts.recipe = request_.recipe.to_json();
  facts.calibration = calibration_json(request_.recipe, planned_.calibration());
  facts.card = card_header(io_, request_.recipe, model_.checkpoint, plan.calibrates);
  facts.bytes_in = model_.checkpoint.tensor_bytes();
  outcome_.output = request_.recipe.output;
  outcome_.compute = settings_.compute;
  outcome_.modules = plan.modules;
  outcome_.planned_peak = plan.peak_bytes;
  outcome_.memory_limit = settings_.memory_limit;
}

// What all ranks read, wrote and told each other, at rank 0.
void QuantizeJob::count_traffic(std::uint64_t written_before) {
  std::array<std::int64_t, 4> bytes = {
      static_cast<std::int64_t>(files_.model->counters().bytes_read),
      static_cast<std::int64_t>(io_.counters().bytes_written - written_before),
      static_cast<std::int64_t>(files_.scratch->counters().bytes_written),
      static_cast<std::int64_t>(settings_.ranks().traffic())};
  settings_.ranks().sum_to(0, bytes);
  outcome_.disk = {reads(), form().outline().bytes_written, static_cast<std::uint64_t>(bytes[0]),
                   static_cast<std::uint64_t>(bytes[1]), static_cast<std::uint64_t>(bytes[2])};
  outcome_.ranks = settings_.ranks().size();
  outcome_.bytes_between_ranks = static_cast<std::uint64_t>(bytes[3]);
}

// Of several ranks rank 0 knows where the bytes come from, judges them and gives them their name.
void QuantizeJob::write_and_publish() {
  const Recipe& recipe = request_.recipe;
  const std::uint64_t written_before = io_.counters().bytes_written;
  if (settings_.ranks().rank() != 0) {
    planned_.write(target(), outcome_);
    return count_traffic(written_before);
  }
  RunProvenance provenance(io_, *files_.model, digests_,
                           input_files(io_, recipe, form().outline().calibrates, model_.checkpoint),
                           job_provenance(recipe, settings_));
  provenance.facts().allow_nonfinite = outcome_.facts.job.at("allow_nonfinite").as_bool();
  provenance.facts().calibration = outcome_.facts.calibration;
  provenance.facts().changed_before = model_.changed_before;
  planned_.write(target(), outcome_);
  provenance.wait();
  count_traffic(written_before);
  outcome_.seconds = seconds_since(start_);
  if (recipe.evaluate)
    outcome_.evaluation = evaluate_output(*recipe.evaluate, form().place().string(), model_, settings_);
  const bool met = !outcome_.evaluation || all_met(outcome_.evaluation->gates);
  outcome_.version = planned_.form().publish(
      outcome_, [&](const std::vector<NamedDigest>& files) { return provenance.manifest(files); }, met);
}

}  // namespace llmq
