#include "io_faults/job_on_disk.h"

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "export/output/model_directory.h"
#include "export/provenance/manifest.h"
#include "export/provenance/verify.h"

namespace llmq::testing {
namespace {

namespace fs = std::filesystem;

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  if (const std::size_t at = text.find(what); at != std::string::npos) text.replace(at, what.size(), by);
  return text;
}

// Nothing that looks like an output, or every file that its manifest names.
bool is_whole(const fs::path& directory) {
  if (!fs::exists(directory / "config.json") && !fs::exists(directory / "model.safetensors")) return true;
  if (!fs::exists(directory / "manifest.json")) return false;
  const Json manifest = Json::parse(read_file(directory / "manifest.json"), "manifest.json");
  for (const NamedDigest& file : manifest_subjects(manifest, "manifest.json"))
    if (!fs::exists(directory / file.name)) return false;
  return true;
}

// The manifest comes behind the file, so that it is there only with everything it speaks of.
std::string found_file(const fs::path& file) {
  if (fs::exists(manifest_path(file)) && !verify_output(system_io(), file).ok()) return "torn";
  return fs::exists(file) ? file_sha256(system_io(), file) : std::string();
}

}  // namespace

JobOnDisk::JobOnDisk(std::vector<std::string> arguments, std::string output)
    : arguments_(std::move(arguments)), output_(std::move(output)) {
  copy_of_model(scratch_, "in");
  fs::create_directory(work());
  keep_as_start();
}

void JobOnDisk::keep_as_start() {
  fs::remove_all(scratch_ / "start");
  fs::copy(work(), scratch_ / "start", fs::copy_options::recursive | fs::copy_options::copy_symlinks);
}

void JobOnDisk::begin() {
  fs::remove_all(work());
  fs::copy(scratch_ / "start", work(), fs::copy_options::recursive | fs::copy_options::copy_symlinks);
}

FaultyRun JobOnDisk::run(const std::string& fault) const { return run(arguments_, fault); }

FaultyRun JobOnDisk::run(const std::vector<std::string>& arguments, const std::string& fault) const {
  std::vector<std::string> words;
  for (const std::string& word : arguments)
    words.push_back(replaced(replaced(word, "@in", in()), "@work", work()));
  const std::string log = scratch_ / "log";
  fs::remove(log);
  FaultyRun run;
  // No digests from run to run: every run reads the same.
  run.outcome = run_llmq(words, {"LD_PRELOAD=" LLMQ_FAULTY_DISK, "FAULTY_DISK_UNDER=" + scratch_.path(),
                                 "FAULTY_DISK_LOG=" + log, "FAULTY_DISK_FAULT=" + fault,
                                 "FAULTY_DISK_CUT=" + in() + "/model.safetensors", "LLMQ_DIGEST_CACHE="});
  std::istringstream lines(read_file(log));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    DiskCall call;
    std::string mark;
    fields >> call.first >> call.second >> mark;
    run.hit = run.hit || mark == "FAULT";
    run.calls.push_back(std::move(call));
  }
  return run;
}

std::string JobOnDisk::found() const {
  fs::path at = output();
  if (at.extension() == ".gguf") return found_file(at);
  if (!fs::is_directory(at)) return {};
  for (const fs::directory_entry& entry : fs::directory_iterator(at))
    if (entry.is_directory() && !is_whole(entry.path())) return "torn";
  if (fs::is_symlink(at / "latest")) at /= fs::read_symlink(at / "latest");
  if (!is_whole(at)) return "torn";
  return fs::exists(at / "config.json") ? output_digest(system_io(), at) : std::string();
}

std::vector<std::string> JobOnDisk::names() const {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(work()))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace llmq::testing
