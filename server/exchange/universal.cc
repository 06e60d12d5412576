#include "server/exchange/universal.h"

#include <algorithm>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/io/arena.h"
#include "common/text/names.h"
#include "server/durability/records/read_lanes.h"
#include "server/exchange/run_walk.h"
#include "server/exchange/state_image.h"
#include "server/exchange/torch_file.h"
#include "server/exchange/torch_pickle.h"

namespace ballast::server {
namespace {

constexpr size_t kFolderBytesMax = 255;  // what file systems take
constexpr char kStepFile[] = "step.pt";
constexpr int kFolderLanes = 4;  // folders made at a time: each waits for the disk

std::string TagOf(uint64_t round) { return absl::StrCat("global_step", round - 1); }

absl::Status Unsupported(const JobSpec& spec, const std::string& why) {
  return ReasonedError(absl::StatusCode::kUnimplemented, Reason::kUnsupported,
                       absl::StrCat("job ", Quoted(spec.name), " cannot be a universal ",
                                    "checkpoint: ", why, "; leave --format out for safetensors"),
                       {.job = spec.name});
}

absl::Status CheckKind(const JobSpec& spec, bool torch_optimizer) {
  if (spec.optimizer == OptimizerKind::kApplyDelta) {
    return Unsupported(spec,
                       "its script computes the updates, and DeepSpeed has no such optimizer");
  }
  const bool adam =
      spec.optimizer == OptimizerKind::kAdamW || spec.optimizer == OptimizerKind::kAdam;
  if (adam && !torch_optimizer && StateArraysOf(spec).size() > 2) {
    return Unsupported(spec,
                       "it has amsgrad, which DeepSpeed's own Adam has not "
                       "(--torch-optimizer writes it for torch's)");
  }
  return absl::OkStatus();
}

absl::Status CheckFolder(const std::string& name) {
  std::string why;
  if (name == "." || name == "..") why = "leads elsewhere";
  if (name.find_first_of(std::string("/\0", 2)) != std::string::npos) why = "has a / or a zero";
  if (name.size() > kFolderBytesMax) why = absl::StrCat("has ", name.size(), " bytes");
  if (why.empty()) return absl::OkStatus();
  return ReasonedError(
      absl::StatusCode::kInvalidArgument, Reason::kBadSpec,
      absl::StrCat("parameter ", Quoted(name.substr(0, kFolderBytesMax)),
                   " cannot be a folder of a universal checkpoint: its name ", why,
                   "; a folder's name has at most ", kFolderBytesMax, " bytes and no /"));
}

// DeepSpeed's Adagrad uses its Adam's name of second moments for its sums.
std::string FileOf(const JobSpec& spec, uint32_t array, bool torch_optimizer) {
  if (array == 0) return "fp32.pt";
  const std::string name = StateArraysOf(spec)[array - 1].name;
  const bool renamed = spec.optimizer == OptimizerKind::kAdagrad && !torch_optimizer;
  return absl::StrCat(renamed ? "exp_avg_sq" : name, ".pt");
}

void PutStep(uint64_t step, bool as_tensor, TorchPickle* pickle, std::vector<float>* records) {
  if (!as_tensor) return pickle->Int(static_cast<int64_t>(step));
  pickle->Tensor({}, static_cast<uint32_t>(records->size()));
  records->push_back(static_cast<float>(step));
}

std::string StepBytes(uint64_t step, bool as_tensor) {
  TorchPickle pickle;
  std::vector<float> records;
  PutStep(step, as_tensor, &pickle, &records);
  return EncodeTorchFile(pickle.Finish(), records);
}

// Of `group`; 0 for a group without tensors.
uint64_t StepOf(const UniversalMoment& moment, uint32_t group) {
  for (size_t t = 0; t < moment.spec.tensors.size(); ++t) {
    if (moment.spec.tensors[t].group == group) return moment.tensor_step[t];
  }
  return 0;
}

// The DeepSpeed whose files these are.
void PutVersion(TorchPickle* pickle) {
  pickle->Text("ds_version");
  pickle->Text("0.19.8");
}

// Hyper-parameters are left out: the loading engine keeps its own.
void PutGroups(uint32_t groups, TorchPickle* pickle) {
  pickle->BeginList();
  for (uint32_t group = 0; group < groups; ++group) {
    pickle->BeginDict();
    pickle->Text("params");
    pickle->BeginList();
    pickle->Int(group);
    pickle->EndList();
    pickle->EndDict();
  }
  pickle->EndList();
}

// zero/optimizer_state.pt: stages 1 and 2 read the top, stage 3 the part below.
std::string OptimizerBytes(const UniversalMoment& moment) {
  const uint32_t groups = moment.spec.group_count;
  TorchPickle pickle;
  std::vector<float> records;
  pickle.BeginDict();
  pickle.Text("partition_count");
  pickle.Int(1);
  PutVersion(&pickle);
  pickle.Text("param_groups");
  PutGroups(groups, &pickle);
  pickle.Text("optimizer_state_dict");
  pickle.BeginDict();
  pickle.Text("state");
  pickle.BeginDict();
  for (uint32_t group = 0; group < groups; ++group) {
    pickle.Int(group);
    pickle.BeginDict();
    pickle.Text("step");
    PutStep(StepOf(moment, group), moment.torch_optimizer, &pickle, &records);
    pickle.EndDict();
  }
  pickle.EndDict();
  pickle.Text("param_groups");
  PutGroups(groups, &pickle);
  pickle.EndDict();
  pickle.EndDict();
  return EncodeTorchFile(pickle.Finish(), records);
}

void PutNumber(const char* key, int64_t value, TorchPickle* pickle) {
  pickle->Text(key);
  pickle->Int(value);
}

void PutNone(const char* key, TorchPickle* pickle) {
  pickle->Text(key);
  pickle->None();
}

// A list of a dict per group, from name to shape.
void PutShapes(const JobSpec& spec, TorchPickle* pickle) {
  pickle->Text("param_shapes");
  pickle->BeginList();
  for (uint32_t group = 0; group < spec.group_count; ++group) {
    pickle->BeginDict();
    for (const TensorSpec& tensor : spec.tensors) {
      if (tensor.group != group) continue;
      pickle->Text(tensor.name);
      pickle->Size({tensor.shape.begin(), tensor.shape.end()});
    }
    pickle->EndDict();
  }
  pickle->EndList();
}

void PutTiedNames(const JobSpec& spec, TorchPickle* pickle) {
  pickle->Text("shared_params");
  pickle->BeginDict();
  for (const TensorSpec& tensor : spec.tensors) {
    for (const std::string& alias : tensor.aliases) {
      pickle->Text(alias);
      pickle->Text(tensor.name);
    }
  }
  pickle->EndDict();
}

// DeepSpeed's schedules read the first number, torch's the second; torch's LambdaLR wants the list.
void PutSchedule(const UniversalMoment& moment, TorchPickle* pickle) {
  const auto applied = static_cast<int64_t>(moment.policy.opt_step);
  const bool ours = moment.policy.schedule_index >= 0;
  pickle->Text("lr_scheduler");
  pickle->BeginDict();
  PutNumber("last_batch_iteration", ours ? moment.policy.schedule_index : applied - 1, pickle);
  PutNumber("last_epoch", applied, pickle);
  pickle->Text("lr_lambdas");
  pickle->BeginList();
  pickle->EndList();
  pickle->EndDict();
}

void PutEmpty(TorchPickle* pickle) {
  pickle->Text("module");
  pickle->BeginDict();
  pickle->EndDict();
  pickle->Text("buffer_names");
  pickle->BeginList();
  pickle->EndList();
  pickle->Text("ds_config");
  pickle->BeginDict();
  pickle->EndDict();
  for (const char* key : {"optimizer", "frozen_param_shapes", "frozen_param_fragments"}) {
    PutNone(key, pickle);
  }
}

std::string ModelBytes(const UniversalMoment& moment) {
  const auto rounds = static_cast<int64_t>(moment.round - 1);
  const auto applied = static_cast<int64_t>(moment.policy.opt_step);
  TorchPickle pickle;
  pickle.BeginDict();
  PutEmpty(&pickle);
  PutShapes(moment.spec, &pickle);
  PutTiedNames(moment.spec, &pickle);
  PutSchedule(moment, &pickle);
  PutNumber("global_steps", rounds, &pickle);
  PutNumber("skipped_steps", std::max<int64_t>(rounds - applied, 0), &pickle);
  PutNumber("dp_world_size", 1, &pickle);
  PutNumber("mp_world_size", 1, &pickle);
  PutVersion(&pickle);
  pickle.Text("universal_checkpoint_info");
  pickle.BeginDict();
  pickle.Text("universal_checkpoint_version");
  pickle.Double(0.4);
  pickle.EndDict();
  pickle.EndDict();
  return EncodeTorchFile(pickle.Finish(), {});
}

// Writes the folders of one shard.
class UniversalWriter {
 public:
  UniversalWriter(FileSystem* fs, std::string directory, const ExportShard& shard,
                  const ExportSource& source)
      : fs_(fs), directory_(std::move(directory)), shard_(shard), source_(source) {}

  absl::Status Write() {
    files_.resize(shard_.universal.size());
    BALLAST_ASSIGN_OR_RETURN(ReadLanes lanes, ReadLanes::Create(kFolderLanes, 1));
    BALLAST_RETURN_IF_ERROR(lanes.ForEach(
        files_.size(), [this](size_t i, const Arena&) { return Begin(static_cast<uint32_t>(i)); }));
    return WalkRuns(shard_, source_, [this](const RunState& state) { return WriteRun(state); });
  }

 private:
  // Makes the folder of tensor `i` of the shard, its files, and its step.
  absl::Status Begin(uint32_t i);
  absl::Status WriteRun(const RunState& state);

  FileSystem* const fs_;
  const std::string directory_;
  const ExportShard& shard_;
  const ExportSource& source_;
  // By tensor, from the shard's first, then by state array.
  std::vector<std::vector<std::unique_ptr<TorchTensorFile>>> files_;
};

absl::Status UniversalWriter::Begin(uint32_t i) {
  const UniversalFolder& folder = shard_.universal[i];
  const std::string path = absl::StrCat(directory_, "/", folder.path);
  BALLAST_RETURN_IF_ERROR(fs_->MakeDirectory(path));
  const bool empty = std::count(folder.shape.begin(), folder.shape.end(), 0) > 0;
  for (const std::string& name : folder.files) {
    BALLAST_ASSIGN_OR_RETURN(
        std::unique_ptr<TorchTensorFile> file,
        TorchTensorFile::Create(fs_, absl::StrCat(path, "/", name), folder.shape));
    if (empty) BALLAST_RETURN_IF_ERROR(file->Finish());
    files_[i].push_back(std::move(file));
  }
  // Last: it flushes the folder, in which all names are by now.
  return ReplaceFile(
      fs_, absl::StrCat(path, "/", kStepFile),
      StepBytes(source_.tensor_step[shard_.first_tensor + i], folder.step_is_tensor));
}

absl::Status UniversalWriter::WriteRun(const RunState& state) {
  const Run& run = state.run;
  const auto& files = files_[run.tensor - shard_.first_tensor];
  for (uint32_t array = 0; array < files.size(); ++array) {
    const ArrayPieces values{*source_.layout, state.extent, source_.arrays, array};
    values.Gather(state.image, run.extent_offset, run.elements, state.first);
    BALLAST_ASSIGN_OR_RETURN(const bool last,
                             files[array]->Write(run.tensor_offset, state.first, run.elements));
    if (last) BALLAST_RETURN_IF_ERROR(files[array]->Finish());
    if (source_.progress) source_.progress(run.elements * sizeof(float));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status PlanUniversal(const JobSpec& spec, uint64_t round, bool torch_optimizer,
                           ExportShard* shard) {
  BALLAST_RETURN_IF_ERROR(CheckKind(spec, torch_optimizer));
  // DeepSpeed has no SGD of its own.
  const bool tensors = torch_optimizer || spec.optimizer == OptimizerKind::kSgd;
  for (uint32_t i = 0; i < shard->tensor_count; ++i) {
    const TensorSpec& tensor = spec.tensors[shard->first_tensor + i];
    BALLAST_RETURN_IF_ERROR(CheckFolder(tensor.name));
    UniversalFolder folder;
    folder.path = absl::StrCat(TagOf(round), "/zero/", tensor.name);
    folder.shape.assign(tensor.shape.begin(), tensor.shape.end());
    for (uint32_t array = 0; array < StateArrayCount(spec); ++array) {
      folder.files.push_back(FileOf(spec, array, torch_optimizer));
    }
    folder.step_is_tensor = tensors;
    shard->universal.push_back(std::move(folder));
  }
  return absl::OkStatus();
}

uint64_t UniversalBytes(const ExportShard& shard) {
  uint64_t bytes = 0;
  for (const UniversalFolder& folder : shard.universal) {
    bytes += folder.files.size() * TorchTensorFile::FileBytes(folder.shape);
    bytes += StepBytes(0, folder.step_is_tensor).size();
  }
  return bytes;
}

absl::Status CheckUniversalSteps(const JobSpec& spec, const std::vector<uint64_t>& tensor_step) {
  std::vector<size_t> first(spec.group_count, spec.tensors.size());  // of each group
  for (size_t t = 0; t < spec.tensors.size(); ++t) {
    size_t& other = first[spec.tensors[t].group];
    if (other == spec.tensors.size()) other = t;
    if (tensor_step[t] == tensor_step[other]) continue;
    return Unsupported(spec,
                       absl::StrCat("DeepSpeed has one step count for a group, and of group ",
                                    spec.tensors[t].group, " ", Quoted(spec.tensors[other].name),
                                    " has taken ", tensor_step[other], " steps and ",
                                    Quoted(spec.tensors[t].name), " ", tensor_step[t]));
  }
  return absl::OkStatus();
}

absl::Status WriteUniversal(FileSystem* fs, const std::string& directory, const ExportShard& shard,
                            const ExportSource& source) {
  return UniversalWriter(fs, directory, shard, source).Write();
}

std::vector<LastFile> UniversalRest(const UniversalMoment& moment) {
  const std::string tag = TagOf(moment.round);
  const std::string model = ModelBytes(moment);
  return {{tag + "/zero/optimizer_state.pt", OptimizerBytes(moment)},
          {tag + "/mp_rank_00_model_states.pt", model},
          {tag + "/zero_pp_rank_0_mp_rank_00_model_states.pt", model},
          {"latest_universal", tag}};
}

absl::Status WriteUniversalRest(FileSystem* fs, const std::string& directory,
                                const UniversalMoment& moment) {
  BALLAST_RETURN_IF_ERROR(
      fs->MakeDirectory(absl::StrCat(directory, "/", TagOf(moment.round), "/zero")));
  const std::vector<LastFile> files = UniversalRest(moment);
  for (const LastFile& file : files) {
    // The folders are durable before a file names them.
    if (&file == &files.back()) BALLAST_RETURN_IF_ERROR(fs->SyncDirectory(directory));
    BALLAST_RETURN_IF_ERROR(ReplaceFile(fs, absl::StrCat(directory, "/", file.path), file.content));
  }
  return absl::OkStatus();
}

}  // namespace ballast::server
