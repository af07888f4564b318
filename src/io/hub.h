// Where a model argument leads: a directory, a .gguf file, or a name in the local Hugging Face cache. Never
// the network.
//
// Cache layout: <cache>/models--<owner>--<name>/refs/main holds a commit, snapshots/<commit>/ the files
// (symbolic links into blobs/). <cache> is $HF_HUB_CACHE, else $HUGGINGFACE_HUB_CACHE, else $HF_HOME/hub,
// else $XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub. Source: huggingface_hub/constants.py
// and its guide "Manage cache".
#pragma once
#include <string>
#include <string_view>

#include "base/io.h"

namespace llmq {

// "owner/name" of letters, digits, '-', '_' and '.', neither part starting or ending with '-' or '.', without
// "--" and "..", at most 96 bytes.
bool is_hub_name(std::string_view text);

// An identifier of the hub's list of licences by its form: "apache-2.0", "other".
bool is_hub_license(std::string_view text);

Path hub_cache_directory();

// The snapshot directory of a hub name. Error(kBadInput) with the command that would fetch it.
Path find_in_hub_cache(Io& io, const std::string& name);

// "owner/name" of a snapshot directory in a hub cache, or of what lies below one; empty for other paths.
std::string hub_name_of(const Path& path);

// An existing directory or .gguf file; what is there wins over a hub name. Error(kBadInput) saying what was
// looked for and where.
Path resolve_model(Io& io, const std::string& model);

}  // namespace llmq
