// Runs the built llmq as a child process and keeps what it said.
#pragma once
#include <string>
#include <vector>

#include "base/json.h"

namespace llmq::testing {

struct Outcome {
  int exit_code = -1;  // 128 + signal when killed
  std::string out, err;
  Json json() const { return Json::parse(out, "stdout"); }
};

using Words = std::vector<std::string>;  // of a command line, or of a directory

// `environment`: NAME=VALUE pairs added to this process's. `input` is fed to stdin.
Outcome run_llmq(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {},
                 const std::string& input = {});

// The same with a signal after a while, unless it has ended by then.
Outcome run_llmq_until(double seconds, int signal, const std::vector<std::string>& arguments);

// The small trained model that the repository carries.
std::string tinystories();

// A directory of its own, removed with the object.
class Scratch {
 public:
  Scratch();
  ~Scratch();
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

void write_file(const std::string& path, const std::string& text);
std::string read_file(const std::string& path);
// A copy of the small model whose files may be damaged.
std::string copy_of_model(const Scratch& scratch, const std::string& name = "model");
// The small model rounded to nearest below `scratch`, with `settings` as --set takes them; where it lies.
std::string rounded_model(const Scratch& scratch, const std::string& name, const Words& settings);
std::string sha256_of(const std::string& path);
Words names_in(const std::string& directory);  // sorted

}  // namespace llmq::testing
