// The licence of a model, where its files say it for certain: in this order
//
//   the front matter of README.md   license, license_name, license_link
//   the metadata of a GGUF          general.license, general.license.name, general.license.link
//   config.json                     license
//   LICENSE, LICENSE.txt, .md       the text of Apache-2.0 or of the MIT licence, word for word
//
// A value that is no identifier of the hub's form ("Apache 2.0") is none.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/io.h"
#include "io/checkpoint.h"

namespace llmq {

struct SourceLicense {
  std::vector<std::string> ids;  // "apache-2.0"; several where a card has several
  std::string name, link;        // beside "other"
};

SourceLicense source_license(Io& io, const Checkpoint& checkpoint);

// "apache-2.0" or "mit" where `text` is that licence with nothing added but its holders; else empty.
std::string license_of_text(std::string_view text);

}  // namespace llmq
