#include "cli/program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <sstream>
#include <stdexcept>

#include "base/sha256.h"

namespace llmq::testing {

namespace fs = std::filesystem;

Scratch::Scratch() {
  std::string pattern = (fs::temp_directory_path() / "llmq-cli-XXXXXX").string();
  if (!mkdtemp(pattern.data())) throw std::runtime_error("no temporary directory");
  path_ = pattern;
}
Scratch::~Scratch() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string read_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::string tinystories() { return std::string(LLMQ_SOURCE_DIR) + "/tests/models/tinystories-656k"; }

std::string copy_of_model(const Scratch& scratch, const std::string& name) {
  fs::copy(tinystories(), scratch / name, fs::copy_options::recursive);
  return scratch / name;
}

std::string rounded_model(const Scratch& scratch, const std::string& name, const Words& settings) {
  const std::string out = scratch / name;
  Words words = {"quantize", "--method", "rtn", "--model", tinystories(), "--output", out};
  for (const std::string& setting : settings) words.insert(words.end(), {"--set", setting});
  const Outcome made = run_llmq(words);
  EXPECT_EQ(made.exit_code, 0) << made.err;
  return out;
}

std::string sha256_of(const std::string& path) {
  const std::string text = read_file(path);
  return sha256_hex(std::as_bytes(std::span(text)));
}

Words names_in(const std::string& directory) {
  Words names;
  for (const auto& entry : fs::directory_iterator(directory)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

namespace {

// In the child: files below `scratch` for the streams, then the program.
[[noreturn]] void become_llmq(const Scratch& scratch, const std::vector<std::string>& arguments,
                              const std::vector<std::string>& environment) {
  setenv("LLMQ_DIGEST_CACHE", (scratch / "digests").c_str(), 0);  // the user's own is left alone
  setenv("CUDA_VISIBLE_DEVICES", "", 0);                          // "auto" is the same on every machine
  for (const std::string& pair : environment) putenv(const_cast<char*>(pair.c_str()));
  const auto redirect = [&](const std::string& name, int flags, int to) {
    dup2(open((scratch / name).c_str(), flags, 0600), to);
  };
  redirect("in", O_RDONLY, 0);
  redirect("out", O_CREAT | O_WRONLY, 1);
  redirect("err", O_CREAT | O_WRONLY, 2);
  std::vector<char*> argv = {const_cast<char*>("llmq")};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(LLMQ_PROGRAM, argv.data());
  _exit(127);
}

Outcome outcome_of(const Scratch& scratch, int status) {
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_file(scratch / "out"),
          read_file(scratch / "err")};
}

}  // namespace

Outcome run_llmq(const std::vector<std::string>& arguments, const std::vector<std::string>& environment,
                 const std::string& input) {
  const Scratch scratch;
  write_file(scratch / "in", input);
  const pid_t child = fork();
  if (child == 0) become_llmq(scratch, arguments, environment);
  int status = 0;
  waitpid(child, &status, 0);
  return outcome_of(scratch, status);
}

Outcome run_llmq_until(double seconds, int signal, const std::vector<std::string>& arguments) {
  const Scratch scratch;
  write_file(scratch / "in", "");
  const pid_t child = fork();
  if (child == 0) become_llmq(scratch, arguments, {});
  usleep(static_cast<useconds_t>(seconds * 1e6));
  kill(child, signal);  // not yet waited for, so the number is still this child's
  int status = 0;
  waitpid(child, &status, 0);
  return outcome_of(scratch, status);
}

}  // namespace llmq::testing
