#include "tools/flags/gate_files.h"

#include "base/error.h"
#include "base/io.h"
#include "base/parent_path.h"
#include "job/documents/gate_documents.h"

namespace llmq::tools {
namespace {

void append_text(Io& io, const Path& path, const std::string& text) {
  const std::unique_ptr<File> file = io.exists(path) ? io.open_to_write(path) : io.create(path);
  file->write_at(file->size(), std::as_bytes(std::span(text)));
  file->sync();
}

// Before a job of hours, so that a file that cannot be written is told before it; and where the process is
// killed, that is what CI finds, instead of an earlier run's good news.
void begin_gate_files(const GateFiles& files, const std::string& command) {
  for (const std::string& file : {files.junit, files.summary})
    if (!file.empty()) system_io().make_directory(parent_of(file));
  if (!files.junit.empty())
    write_text_atomically(
        system_io(), files.junit,
        junit_of_error(command, Error(ErrorKind::kInternal, {"did not come to its end", {}, {}, {}})));
  if (!files.summary.empty()) append_text(system_io(), files.summary, "");
}

}  // namespace

void add_gate_files(CLI::App& command, GateFiles& files) {
  command.add_option("--junit", files.junit, "Write each gate as a test case of a JUnit file, too")
      ->type_name("FILE");
  command
      .add_option("--summary", files.summary,
                  "Add a Markdown table of the figures and gates to this file, such as $GITHUB_STEP_SUMMARY")
      ->type_name("FILE");
}

void write_gate_files(const GateFiles& files, const Json& document, bool strict) {
  if (!files.junit.empty()) write_text_atomically(system_io(), files.junit, junit_text(document, strict));
  if (!files.summary.empty()) append_text(system_io(), files.summary, summary_text(document, strict));
}

int run_with_gate_files(const GateFiles& files, const std::string& command, const std::function<int()>& job) {
  begin_gate_files(files, command);
  try {
    return job();
  } catch (const Error& error) {
    if (!files.junit.empty()) write_text_atomically(system_io(), files.junit, junit_of_error(command, error));
    throw;
  }
}

}  // namespace llmq::tools
