// A quantization as the tool runs it under a launcher, by threads for ranks.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "job/quantize_job.h"
#include "ranks/agreement.h"
#include "ranks/thread_ranks.h"

namespace llmq {

inline constexpr const char* kSharedModel = LLMQ_SOURCE_DIR "/tests/models/tinystories-656k";
inline const Program kSharingProgram = {"0.0.1", "abc1234", "llmq"};

inline QuantizeRequest shared_request(const std::string& output, const std::vector<std::string>& settings) {
  QuantizeRequest request;
  request.paranoid = true;  // no digests of this machine's other runs
  request.recipe.source = "command line";
  request.recipe.model = kSharedModel;
  request.recipe.output = output;
  for (const std::string& setting : settings) request.recipe.set(setting);
  return request;
}

inline JobSettings settings_of_rank(
    Ranks& ranks, int threads = 1, std::function<void()> on_step = [] {}) {
  JobSettings settings;
  settings.devices = {make_cpu_backend(threads)};
  settings.program = kSharingProgram;
  settings.on_step = std::move(on_step);
  settings.shared_by = &ranks;
  return settings;
}

// What each rank is asked for, and what it sees of the disk.
struct RankWork {
  std::function<QuantizeRequest(int)> request;
  std::function<void(int)> on_step = [](int) {};
  std::function<Io&(int)> io = [](int) -> Io& { return system_io(); };
};

// Rank 0's document. `done` sees rank 0's job behind its end.
inline Json job_by_ranks(
    const RankWork& work, int ranks, int threads = 1,
    const std::function<void(QuantizeJob&)>& done = [](QuantizeJob&) {}) {
  Json document;
  run_as_ranks(ranks, [&](Ranks& rank) {
    const int number = rank.rank();
    const JobSettings settings = settings_of_rank(rank, threads, [&work, number] { work.on_step(number); });
    std::optional<QuantizeJob> job;
    begin_together(
        rank, [&] { job.emplace(work.io(number), work.request(number), settings); },
        [&] { return job->facts(); });
    const JobEnd end = job->run();
    if (number != 0) return;
    document = end.document;
    done(*job);
  });
  return document;
}

// The same of one request. `on_step` is told which rank it is.
inline Json job_by_ranks(
    const QuantizeRequest& asked, int ranks, int threads = 1,
    const std::function<void(int)>& on_step = [](int) {},
    const std::function<void(QuantizeJob&)>& done = [](QuantizeJob&) {}) {
  return job_by_ranks(RankWork{[&](int) { return asked; }, on_step}, ranks, threads, done);
}

}  // namespace llmq
