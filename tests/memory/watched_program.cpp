#include "memory/watched_program.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>

namespace llmq::testing {
namespace {

// A look walks the program's page tables under a lock that its own allocations wait for, 20 ms of 4 GB: it
// may take a tenth of the program's time.
constexpr std::chrono::milliseconds kPause{3};
constexpr int kPausesOfALook = 9;

// "Anonymous:        1234 kB" of a file of /proc; 0 where it is not.
std::uint64_t kilobytes(const std::string& text, const std::string& key) {
  const std::size_t at = text.find("\n" + key + ":");
  return at == std::string::npos ? 0 : std::stoull(text.substr(at + key.size() + 2)) * 1024;
}

std::string contents(const std::string& path) {
  std::ifstream file(path);
  std::string text = "\n", line;
  while (std::getline(file, line)) text += line + "\n";
  return text;
}

std::uint64_t io_bytes(const std::string& text, const std::string& key) {
  const std::size_t at = text.find("\n" + key + ": ");
  return at == std::string::npos ? 0 : std::stoull(text.substr(at + key.size() + 3));
}

// Private dirty pages are anonymous or a private file's; of files only what is beyond the anonymous ones
// counts.
std::uint64_t own_bytes(const std::string& rollup) {
  const std::uint64_t anonymous = kilobytes(rollup, "Anonymous"), dirty = kilobytes(rollup, "Private_Dirty");
  return std::max(anonymous, dirty) + kilobytes(rollup, "Shared_Dirty");
}

// Pages of a program that was linked a moment ago are dirty until they are on the disk, and would count as
// its memory.
void write_back(const std::string& file) {
  const int open_file = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (open_file < 0) return;
  ::fsync(open_file);
  ::close(open_file);
}

// Returns when the program has taken the place of the copy of this process, whose memory is not the
// program's.
pid_t start(const std::vector<std::string>& command, const std::string& output,
            const std::vector<std::string>& environment) {
  write_back(command.front());
  int until_exec[2] = {-1, -1};
  if (::pipe2(until_exec, O_CLOEXEC) != 0) return -1;
  const pid_t child = ::fork();
  if (child != 0) {
    ::close(until_exec[1]);
    char nothing = 0;
    while (::read(until_exec[0], &nothing, 1) < 0 && errno == EINTR) continue;
    ::close(until_exec[0]);
    return child;
  }
  if (!output.empty()) {
    const int file = ::open(output.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
    ::dup2(file, 1);
    ::dup2(file, 2);
  }
  for (const std::string& pair : environment) ::putenv(const_cast<char*>(pair.c_str()));
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  ::execv(words.front(), words.data());
  ::_exit(127);
}

}  // namespace

Watched run_watched(const std::vector<std::string>& command, std::uint64_t limit, const std::string& output,
                    const std::vector<std::string>& environment) {
  Watched watched;
  const auto begin = std::chrono::steady_clock::now();
  const pid_t child = start(command, output, environment);
  const std::string proc = "/proc/" + std::to_string(child);
  siginfo_t ended{};
  while (true) {
    ended.si_pid = 0;
    if (::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        ended.si_pid != 0)
      break;
    const auto look = std::chrono::steady_clock::now();
    const std::uint64_t bytes = own_bytes(contents(proc + "/smaps_rollup"));
    watched.resident_peak_bytes =
        std::max(watched.resident_peak_bytes, kilobytes(contents(proc + "/status"), "VmHWM"));
    watched.peak_bytes = std::max(watched.peak_bytes, bytes);
    ++watched.looks;
    if (limit != 0 && bytes > limit) {
      watched.above_limit = true;
      ::kill(child, SIGKILL);
    }
    const auto took = std::chrono::steady_clock::now() - look;
    std::this_thread::sleep_for(std::max<std::chrono::nanoseconds>(kPause, kPausesOfALook * took));
  }
  const std::string io = contents(proc + "/io");  // of a child that has ended and was not waited for
  watched.disk_read = io_bytes(io, "read_bytes");
  watched.disk_written = io_bytes(io, "write_bytes");
  int status = 0;
  struct rusage usage {};
  ::wait4(child, &status, 0, &usage);
  watched.major_faults = static_cast<std::uint64_t>(usage.ru_majflt);
  watched.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  watched.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return watched;
}

}  // namespace llmq::testing
