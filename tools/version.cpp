#include "tools/version.h"

#include <openssl/crypto.h>

#include <CLI/Version.hpp>

#include "base/json.h"
#include "device/automatic_device.h"
#include "device/cpu/cpu_backend.h"
#include "device/cuda/cusolver.h"
#include "device/cuda/dense/cublaslt.h"
#include "tools/build_facts.h"
#include "tools/print.h"

namespace llmq::tools {

std::string version_text() { return kVersion; }
std::string commit_text() { return kCommit; }
Program this_program(const Session& session) { return {kVersion, kCommit, session.command_line}; }

namespace {

template <class Found>
std::string library_text(const Found& found) {
  return found.missing.empty() ? fmt::format("{} ({})", found.version, found.path) : "none: " + found.missing;
}

// The versions of what the program works with. cuSOLVER and cuBLASLt are opened for it, since which files
// those are decides bits.
Json libraries() {
  Json found = Json::object({{"openssl", OpenSSL_version(OPENSSL_VERSION_STRING)}, {"cli11", CLI11_VERSION}});
  if (kCudaVersion[0] == '\0') return found;
  found["cusolver"] = library_text(find_cusolver());
  found["cublaslt"] = library_text(find_cublaslt());
  return found;
}

}  // namespace

void print_version(bool json) {
  if (!json) {
    print_line(fmt::format("llmq {} ({})", kVersion, kCommit));
    return;
  }
  print_json(Json::object({{"schema", "llmq.version/1"},
                           {"version", kVersion},
                           {"commit", kCommit},
                           {"compiler", kCompiler},
                           {"build_type", kBuildType},
                           {"cpu_levels", text_list(cpu_levels_present())},
                           {"cuda", kCudaVersion[0] == '\0' ? Json() : Json(kCudaVersion)},
                           {"auto", automatic_device().why},
                           {"libraries", libraries()}}));
}

}  // namespace llmq::tools
