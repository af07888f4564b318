#include "evaluate/task_scores.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "base/json_text.h"

namespace llmq {
namespace {

constexpr std::size_t kMostTasks = 10'000, kMostMetrics = 100, kLongestName = 200;
constexpr std::array kShares = {"acc", "acc_norm", "exact_match"};  // of right answers, from 0 to 1

// The document with its name, for errors.
struct ResultsFile {
  const Json& json;
  const std::string& file;

  [[noreturn]] void refuse(const std::string& message, const std::string& where) const {
    fail(ErrorKind::kBadInput,
         {message, file, where, "give the results_*.json that lm_eval --output_path writes"});
  }

  // An object under `key` that may be absent.
  const Json* object(std::string_view key) const {
    const Json* found = json.find(key);
    if (found != nullptr && !found->is_object())
      refuse(fmt::format("expected an object, found {}", found->kind()), std::string(key));
    return found;
  }

  std::string name(const std::string& text, const std::string& where) const {
    if (text.empty() || text.size() > kLongestName ||
        std::any_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }))
      refuse(fmt::format("a name has 1 to {} bytes and no control character", kLongestName), where);
    return text;
  }
};

const Json* member(const Json* object, std::string_view key) {
  return object == nullptr ? nullptr : object->find(key);
}

std::optional<std::int64_t> count(const Json* value) {
  if (value == nullptr || !value->is_integer() || value->as_integer() < 0) return std::nullopt;
  return value->as_integer();
}

std::optional<double> finite(const Json* value) {
  if (value == nullptr || !value->is_number() || !std::isfinite(value->as_double())) return std::nullopt;
  return value->as_double();
}

// "acc,none" -> {"acc", "none"}; none for what is no metric ("alias", "sample_len", "acc_stderr,none").
std::optional<TaskMetric> metric_named(const std::string& key) {
  const std::size_t comma = key.find(',');
  if (comma == std::string::npos || key.substr(0, comma).ends_with("_stderr")) return std::nullopt;
  TaskMetric metric;
  metric.name = key.substr(0, comma);
  metric.filter = key.substr(comma + 1);
  return metric;
}

std::vector<TaskMetric> read_metrics(const ResultsFile& file, const std::string& task, const Json& values,
                                     const Json* better) {
  std::vector<TaskMetric> metrics;
  for (const auto& [key, value] : values.members()) {
    std::optional<TaskMetric> metric = metric_named(key);
    if (!metric || !value.is_number()) continue;  // "N/A" stands for a figure that there is not
    const std::string where = "results." + task + "." + key;
    file.name(metric->name, where);
    file.name(metric->filter, where);
    metric->value = value.as_double();
    const bool share = std::find(kShares.begin(), kShares.end(), metric->name) != kShares.end();
    if (share && !(metric->value >= 0 && metric->value <= 1))
      file.refuse(fmt::format("{} is no share of right answers", metric->value), where);
    metric->standard_error = finite(values.find(metric->name + "_stderr," + metric->filter));
    if (const Json* flag = member(better, metric->name); flag != nullptr && flag->is_bool())
      metric->higher_is_better = flag->as_bool();
    if (metrics.size() == kMostMetrics)
      file.refuse(fmt::format("has more than {} metrics", kMostMetrics), "results." + task);
    metrics.push_back(std::move(*metric));
  }
  return metrics;
}

std::string version_text(const Json* value) {
  if (value == nullptr || value->is_null()) return "";
  const std::string text = value->is_string() ? value->as_string() : value->is_number() ? value->dump() : "";
  return text.size() > kLongestName ? "" : text;
}

std::string date_text(const Json* seconds) {
  const std::optional<double> since = finite(seconds);
  if (!since || *since < 0 || *since > 253'402'300'799.0) return "";  // the year 9999
  const std::chrono::sys_days day = std::chrono::floor<std::chrono::days>(
      std::chrono::sys_seconds(std::chrono::seconds(static_cast<std::int64_t>(*since))));
  const std::chrono::year_month_day date(day);
  return fmt::format("{:04}-{:02}-{:02}", static_cast<int>(date.year()), static_cast<unsigned>(date.month()),
                     static_cast<unsigned>(date.day()));
}

const TaskScore* find_task(const TaskScores& scores, const std::string& name) {
  const auto found = std::find_if(scores.tasks.begin(), scores.tasks.end(),
                                  [&](const TaskScore& one) { return one.task == name; });
  return found == scores.tasks.end() ? nullptr : &*found;
}

const TaskMetric* find_metric(const TaskScore* task, const TaskMetric& like) {
  if (task == nullptr) return nullptr;
  const auto found = std::find_if(task->metrics.begin(), task->metrics.end(), [&](const TaskMetric& one) {
    return one.name == like.name && one.filter == like.filter;
  });
  return found == task->metrics.end() ? nullptr : &*found;
}

// What the two were asked alike; empty, or a sentence of what was not.
std::string asked_otherwise(const TaskScore& here, const TaskScore& there) {
  if (here.version != there.version)
    return fmt::format("is of version {} of the task, and the results are of version {}", there.version,
                       here.version);
  if (here.shots && there.shots && *here.shots != *there.shots)
    return fmt::format("was asked with {} shots, and the results with {}", *there.shots, *here.shots);
  if (here.asked && there.asked && *here.asked != *there.asked)
    return fmt::format("was asked of {} documents, and the results of {}", *there.asked, *here.asked);
  return "";
}

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

}  // namespace

TaskScores parse_task_scores(std::string_view text, const std::string& file) {
  const Json json = Json::parse(text, file);
  const ResultsFile results{json, file};
  const Json* const tasks = results.object("results");
  if (tasks == nullptr) results.refuse("has no results of tasks", "results");
  if (tasks->members().size() > kMostTasks)
    results.refuse(fmt::format("has more than {} tasks", kMostTasks), "results");
  TaskScores scores;
  scores.model = results.name(text_at(json, "model_name"), "model_name");
  scores.harness = version_text(json.find("lm_eval_version"));
  scores.date = date_text(json.find("date"));
  const Json *const versions = results.object("versions"), *const shots = results.object("n-shot"),
                    *const samples = results.object("n-samples"),
                    *const better = results.object("higher_is_better");
  for (const auto& [name, values] : tasks->members()) {
    TaskScore score;
    score.task = results.name(name, "results");
    if (!values.is_object())
      results.refuse(fmt::format("expected an object, found {}", values.kind()), "results." + name);
    score.version = version_text(member(versions, name));
    score.shots = count(member(shots, name));
    score.documents = count(member(member(samples, name), "original"));
    score.asked = count(member(member(samples, name), "effective"));
    score.metrics = read_metrics(results, name, values, member(better, name));
    if (!score.metrics.empty()) scores.tasks.push_back(std::move(score));
  }
  if (scores.tasks.empty()) results.refuse("has no task with a figure", "results");
  return scores;
}

std::vector<AccuracyDrop> accuracy_drops(const TaskScores& scores, const TaskScores& baseline,
                                         const std::string& file, const std::string& baseline_file) {
  std::vector<AccuracyDrop> drops;
  for (const TaskScore& task : scores.tasks)
    for (const TaskMetric& metric : task.metrics) {
      if (std::find(kShares.begin(), kShares.end(), metric.name) == kShares.end()) continue;
      const TaskScore* const other = find_task(baseline, task.task);
      const TaskMetric* const before = find_metric(other, metric);
      if (before == nullptr)
        fail(ErrorKind::kBadInput,
             {fmt::format("has no {} ({}) of the task, which {} has", metric.name, metric.filter, file),
              baseline_file, task.task, "evaluate the original with the same tasks"});
      if (const std::string otherwise = asked_otherwise(task, *other); !otherwise.empty())
        fail(ErrorKind::kBadInput,
             {otherwise, baseline_file, task.task, "evaluate both models with the same tasks and flags"});
      drops.push_back({task.task, metric.name, metric.filter, before->value - metric.value});
    }
  if (drops.empty())
    fail(ErrorKind::kBadInput, {"no task has a share of right answers (acc, acc_norm, exact_match)", file,
                                "results", "evaluate such a task, or leave out --max-acc-drop"});
  return drops;
}

Json to_json(const TaskScores& scores, const TaskScores* baseline) {
  Json rows = Json::array();
  for (const TaskScore& task : scores.tasks)
    for (const TaskMetric& metric : task.metrics) {
      const TaskMetric* const before =
          baseline == nullptr ? nullptr : find_metric(find_task(*baseline, task.task), metric);
      rows.push_back(Json::object({{"task", task.task},
                                   {"metric", metric.name},
                                   {"filter", metric.filter},
                                   {"version", task.version},
                                   {"shots", or_null(task.shots)},
                                   {"documents", or_null(task.documents)},
                                   {"asked", or_null(task.asked)},
                                   {"value", metric.value},
                                   {"standard_error", or_null(metric.standard_error)},
                                   {"higher_is_better", or_null(metric.higher_is_better)},
                                   {"baseline", before == nullptr ? Json() : Json(before->value)}}));
    }
  return Json::object({{"model", scores.model},
                       {"harness", scores.harness},
                       {"date", scores.date},
                       {"baseline", baseline == nullptr ? Json() : Json(baseline->model)},
                       {"rows", rows}});
}

}  // namespace llmq
