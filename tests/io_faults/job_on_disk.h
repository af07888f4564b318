// A job of the built program with a directory of its own, which faults are planted into (faulty_disk.cpp) and
// which can be put back as it was.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "cli/program.h"

namespace llmq::testing {

// One call of a run: what it does ("write") and to which file ("work/q.unfinished/journal").
using DiskCall = std::pair<std::string, std::string>;

struct FaultyRun {
  Outcome outcome;
  std::vector<DiskCall> calls;
  bool hit = false;  // the fault's call came
};

class JobOnDisk {
 public:
  // `arguments` of llmq; "@in" and "@work" stand for the directories of the input and of the output. The
  // output is "@work/<output>", a directory or, by its name, a .gguf file.
  explicit JobOnDisk(std::vector<std::string> arguments, std::string output = "q");

  // What the output's directory holds before each run of begin(): as it is now.
  void keep_as_start();
  void begin();

  std::string in() const { return scratch_ / "in"; }
  std::string work() const { return scratch_ / "work"; }
  std::string output() const { return work() + "/" + output_; }

  // `fault` as FAULTY_DISK_FAULT has it; empty: none.
  FaultyRun run(const std::string& fault = {}) const;
  FaultyRun run(const std::vector<std::string>& arguments, const std::string& fault = {}) const;

  // The digest of what a reader finds at the output, through `latest` where that is there; empty where
  // nothing looks finished; "torn" where that or any version lacks a file of its manifest, and where a file
  // is not what a manifest beside it says.
  std::string found() const;
  std::vector<std::string> names() const;  // in work(), sorted

 private:
  Scratch scratch_;
  std::vector<std::string> arguments_;
  std::string output_;
};

}  // namespace llmq::testing
