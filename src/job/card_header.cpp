#include "job/card_header.h"

#include <algorithm>

#include "export/report/source_license.h"
#include "io/hub.h"

namespace llmq {
namespace {

// Of texts of share/ that are part of a data set of the hub.
std::vector<std::string> datasets_of(const std::vector<std::string>& texts) {
  std::vector<std::string> names;
  for (const std::string& text : texts) {
    const std::string name = text == "builtin:c4"           ? "allenai/c4"
                             : text == "builtin:wikitext-2" ? "Salesforce/wikitext"
                                                            : "";
    if (!name.empty() && std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

}  // namespace

CardHeader card_header(Io& io, const Recipe& recipe, const Checkpoint& checkpoint, bool calibrates) {
  const CardRequest& asked = recipe.card;
  const SourceLicense source = source_license(io, checkpoint);
  CardHeader header;
  header.base_model = asked.base_model.empty() ? hub_name_of(checkpoint.path()) : asked.base_model;
  header.quantized_by = asked.quantized_by;
  header.licenses = asked.license.empty() ? source.ids : std::vector<std::string>{asked.license};
  if (header.licenses == source.ids) {  // what the model says of that licence holds for no other
    header.license_name = source.name;
    header.license_link = source.link;
  }
  if (asked.datasets)
    header.datasets = *asked.datasets;
  else if (calibrates)
    header.datasets = datasets_of(recipe.calibration.text);
  return header;
}

}  // namespace llmq
