// share/monitoring against what /metrics says: both files are read whole, and every metric they ask for
// exists.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <set>

#include "base/io.h"
#include "base/json.h"
#include "base/yaml.h"
#include "serve/metrics.h"

namespace llmq {
namespace {

std::string text_of(const char* name) {
  return read_text(system_io(), std::string(LLMQ_SOURCE_DIR) + "/share/monitoring/" + name);
}

std::set<std::string> known_metrics() {
  Metrics metrics({"m", false});
  ServingStatistics statistics;
  statistics.accepted_at = {1};
  metrics.engine(statistics);
  metrics.http("/", 200);
  metrics.probe({.scored = 1, .mean_log_prob = -2.0, .baseline = -2.0});
  const std::string text = metrics.text({});
  static const std::regex sample("(?:^|\n)(\\w+)(?:\\{| )");
  std::set<std::string> names;
  for (std::sregex_iterator match(text.begin(), text.end(), sample), end; match != end; ++match)
    names.insert((*match)[1]);
  return names;
}

// Names in an expression that no scrape has; brackets that do not close.
std::vector<std::string> faults(const std::string& expression) {
  static const std::set<std::string> known = known_metrics();
  static const std::regex name("\\b(llmq_\\w+|process_\\w+)");
  std::vector<std::string> found;
  for (std::sregex_iterator match(expression.begin(), expression.end(), name), end; match != end; ++match)
    if (!known.contains((*match)[1])) found.push_back((*match)[1]);
  for (const char* pair : {"()", "{}", "[]"})
    if (std::count(expression.begin(), expression.end(), pair[0]) !=
        std::count(expression.begin(), expression.end(), pair[1]))
      found.push_back(expression);
  if (expression.find("llmq_") == std::string::npos && expression.find("process_") == std::string::npos)
    found.push_back("no metric: " + expression);
  return found;
}

TEST(Monitoring, AlertsAskForMetricsThatExist) {
  const Yaml rules = Yaml::parse(text_of("alerts.yaml"), "alerts.yaml");
  std::set<std::string> names;
  for (const Yaml& rule : rules.find("groups")->items().at(0).find("rules")->items()) {
    EXPECT_TRUE(names.insert(rule.find("alert")->as_string()).second);
    EXPECT_THAT(faults(rule.find("expr")->as_string()), ::testing::IsEmpty());
    EXPECT_TRUE(std::regex_match(rule.find("for")->as_string(), std::regex("[0-9]+[ms]")));
    EXPECT_NE(rule.find("labels")->find("severity"), nullptr);
    EXPECT_FALSE(rule.find("annotations")->find("summary")->as_string().empty());
  }
  EXPECT_GE(names.size(), 10u);
  for (const char* name :
       {"LlmqSlowFirstToken", "LlmqSlowTokens", "LlmqLowThroughput", "LlmqLowAcceptance", "LlmqQualityDrift"})
    EXPECT_EQ(names.count(name), 1u) << name;
}

TEST(Monitoring, TheDashboardAsksForMetricsThatExist) {
  const Json dashboard = Json::parse(text_of("grafana.json"), "grafana.json");
  std::set<std::string> titles;
  for (const Json& panel : dashboard.at("panels").items()) {
    EXPECT_TRUE(titles.insert(panel.at("title").as_string()).second);
    EXPECT_FALSE(panel.at("targets").items().empty());
    for (const Json& target : panel.at("targets").items())
      EXPECT_THAT(faults(target.at("expr").as_string()), ::testing::IsEmpty());
  }
  EXPECT_GE(titles.size(), 13u);
}

// A Prometheus whose operator reads it asks for the page that there is, as often as its answer may take.
TEST(Monitoring, TheServiceMonitorAsksForThePageThatThereIs) {
  const Yaml monitor = Yaml::parse(text_of("servicemonitor.yaml"), "servicemonitor.yaml");
  EXPECT_EQ(monitor.find("apiVersion")->as_string(), "monitoring.coreos.com/v1");
  EXPECT_EQ(monitor.find("kind")->as_string(), "ServiceMonitor");
  const Yaml& spec = *monitor.find("spec");
  ASSERT_NE(spec.find("selector")->find("matchLabels")->find("app.kubernetes.io/name"), nullptr);
  ASSERT_EQ(spec.find("endpoints")->items().size(), 1u);
  const Yaml& endpoint = spec.find("endpoints")->items().at(0);
  for (const char* key : {"path", "port", "interval", "scrapeTimeout"})
    ASSERT_NE(endpoint.find(key), nullptr) << key;
  EXPECT_EQ(endpoint.find("path")->as_string(), "/metrics");
  EXPECT_EQ(endpoint.find("port")->as_string(), "http") << "a port of the Service, by its name";
  EXPECT_EQ(endpoint.find("targetPort"), nullptr);
  const auto seconds = [&](const char* key) { return std::stoi(endpoint.find(key)->as_string()); };
  EXPECT_LE(seconds("scrapeTimeout"), seconds("interval")) << "Prometheus refuses the monitor otherwise";
}

TEST(Monitoring, TheCheckSeesNamesThatDoNotExist) {
  EXPECT_THAT(faults("rate(llmq_nothing_total[5m])"), ::testing::SizeIs(1));
  EXPECT_THAT(faults("rate(llmq_engine_steps_total[5m]"), ::testing::SizeIs(1));
}

}  // namespace
}  // namespace llmq
